"""Check and measure this box on a machine with a GPU, in one call of at most 8 minutes.

    python3 -m bench.gpu --bundle build/gpu-bundle --out gpu-results

The machine's Python 3.12 must have torch, OpenCV, NumPy and Pillow; ``make gpu-bundle`` makes the rest. Each stage is a
process with a time limit, and appends its results to gpu.jsonl as it goes, so a broken stage costs itself alone.
Without a GPU the same command is a rehearsal.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path

#: The archive of :mod:`bench.gpu.bundle`, which is not importable before this one is unpacked.
ARCHIVE = "bundle.tar.xz"
#: Set once the bundle's Python runs.
UNPACKED = "TRIREME_GPU_UNPACKED"
#: Seconds for each stage, in order: what is cheap and quick comes first, and the figures get what is left.
STAGES = {
    "machine": 40.0,
    "answers": 100.0,
    "memory": 110.0,
    "figures": 300.0,
}
#: For a stopped stage to end its own processes.
END_GRACE_S = 8.0
ROOT = Path(__file__).resolve().parents[2]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--bundle", type=Path, required=True, help="the folder that make gpu-bundle made")
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-results"), help="where gpu.jsonl and the logs go"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("/tmp/trireme-gpu"), help="folder for unpacked files"
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="time for all of it")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement")
    parser.add_argument(
        "--patience", type=float, default=1.0, help="factor of the stages' time limits, for a slow machine"
    )
    parser.add_argument("--only", nargs="+", choices=STAGES, default=list(STAGES), metavar="STAGE")
    parser.add_argument("--stage", help=argparse.SUPPRESS)  # for the process of one stage
    return parser


def main(arguments: list[str]) -> int:
    options = make_parser().parse_args(arguments)
    bundle, work, out = (path.absolute() for path in (options.bundle, options.work, options.out))
    out.mkdir(parents=True, exist_ok=True)
    if UNPACKED not in os.environ:
        until = time.time() + 60 * options.minutes
        variables = unpack(bundle / ARCHIVE, work)
        os.environ.update(variables, **{UNPACKED: str(until)})
        os.environ.pop("PYTHONPATH", None)
        python = str(work / "python" / "bin" / "python3.12")
        os.execv(python, [python, "-m", "bench.gpu", *arguments])
    if options.stage:
        from bench.gpu.stages import Stage

        getattr(Stage(options.stage, work, out, options.seconds, options.patience), options.stage)()
        return 0
    return 0 if run_all(options, work, out, arguments, float(os.environ[UNPACKED])) else 1


def unpack(archive: Path, work: Path) -> dict[str, str]:
    """Unpack into ``work``. Returns the variables for the bundle's Python to run with this machine's torch."""
    if not (work / "python").is_dir():
        with tarfile.open(archive) as parts:
            parts.extractall(work, filter="data")
    folders = []
    for name in ("torch", "numpy", "PIL", "cv2"):
        module = importlib.util.find_spec(name)
        if module is None or module.origin is None:
            raise SystemExit(
                f"{sys.executable} has no {name}: run this with the machine's Python that has it"
            )
        folders.append(Path(module.origin).parents[1])
    if sys.version_info[:2] != (3, 12):
        raise SystemExit(f"{sys.executable} is no Python 3.12, for which the bundle's packages are")
    # Triton's stub for 3.12 ignores PYTHONPATH: it takes the packages of the first python3 on PATH.
    packages = work / "python" / "lib" / "python3.12" / "site-packages"
    packages.mkdir(exist_ok=True)
    paths = dict.fromkeys((ROOT, ROOT / "tools", work / "site", *folders))
    (packages / "trireme-gpu.pth").write_text("".join(f"{path}\n" for path in paths))
    return {
        "PATH": f"{work / 'programs' / 'bin'}:{work / 'python' / 'bin'}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": os.pathsep.join(
            filter(None, (str(work / "python" / "lib"), os.environ.get("LD_LIBRARY_PATH")))
        ),
    }


def run_all(options: argparse.Namespace, work: Path, out: Path, arguments: list[str], until: float) -> bool:
    """Run the stages that fit before ``until`` (Unix time). True if all ended by themselves."""
    from bench.gpu.rows import write_row

    is_whole, logs = True, work / "logs"
    logs.mkdir(exist_ok=True)
    for name in options.only:
        limit_s = min(STAGES[name] * options.patience, until - time.time() - END_GRACE_S)
        start = time.monotonic()
        if limit_s < 15:
            ending = "not run: the time was over"
        else:
            command = (sys.executable, "-m", "bench.gpu", *arguments, "--stage", name)
            ending = run_limited(command, limit_s, logs / f"{name}.log")
        is_whole &= ending == "ended with 0"
        log = (
            (logs / f"{name}.log").read_text(errors="replace")[-1500:]
            if ending.startswith("ended with 1")
            else ""
        )
        with tarfile.open(out / "logs.tar.gz", "w:gz") as archive:
            archive.add(logs, "logs")
        write_row(out, name, "stage", ending=ending, seconds=round(time.monotonic() - start, 1), log=log)
    return is_whole


def run_limited(command: tuple[str, ...], limit_s: float, log: Path) -> str:
    """Run a command for at most ``limit_s``, and kill everything that it started. Returns how it ended."""
    from bench.tree import adopting, descendants

    before = set(descendants(os.getpid()))
    with adopting(), log.open("wb") as output:
        process = subprocess.Popen(command, stdout=None, stderr=output, start_new_session=True)
        try:
            process.wait(limit_s)
            return f"ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # raises in the stage, which then stops what it started
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_GRACE_S)
            return f"took longer than {limit_s:.0f} s"
        finally:
            # A box has its own session. A process whose parent ends becomes a child of this one.
            while left := set(descendants(os.getpid())) - before:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    with suppress(ChildProcessError):
                        os.waitpid(pid, 0)
                process.poll()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
