"""The benchmark: ``make bench`` or ``python -m bench``. What it measures: bench/reports/speed.md."""

from __future__ import annotations

import argparse
import os
import platform
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from bench import decoding, files, flame
from bench.contestant import FORMS, MODELS, PROCESSES, REGIMES, THREADS
from bench.contestants import CONTESTANTS, find
from bench.measuring import Measurements, draw
from bench.results import Results
from bench.running import free_port
from bench.table import markdown
from sm.errors import CommandError
from sm.settings import Settings
from sm.triton.onnx_cpu.engines import BF16, INT8, processor_flags

RESULTS = Path(__file__).with_name("results")
#: A port that was free may be somebody else's when it is wanted, and some do not always start.
TRIES = 2


def main(words: Sequence[str]) -> int:
    """Return 0, or 1 after a sentence that says why nothing could be measured."""
    options = parse(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contestants are ended too
    try:
        if options.flame:
            flame.record(options.flame, options.models[0])
        elif options.show:
            write(Results.load(options.show), options.show)
        else:
            run(options)
    except CommandError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure this box against others.")

    def several(name: str, of: Sequence[str], default: Sequence[str], what: str) -> None:
        parser.add_argument(name, nargs="+", choices=of, default=default, metavar="NAME", help=what)

    several("--contestants", list(CONTESTANTS), list(CONTESTANTS), ", ".join(CONTESTANTS))
    several("--regimes", REGIMES, REGIMES, ", ".join(REGIMES))
    several("--models", MODELS, MODELS, ", ".join(MODELS))
    several("--forms", FORMS, FORMS[:1], ", ".join(FORMS))
    parser.add_argument("--callers", nargs="+", type=int, default=[8, 32], metavar="N", help="at once")
    parser.add_argument("--seconds", type=float, default=2.0, help="each measurement, if not longer")
    parser.add_argument("--draws", type=int, default=1, help="fresh starts of each contestant")
    today = datetime.now(timezone.utc).strftime("%Y-%m-%d-%H%M")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{today}.json", help="the result's file")
    parser.add_argument("--show", type=Path, metavar="FILE", help="the tables of a result that is there")
    parser.add_argument(
        "--flame", type=Path, metavar="FILE", help="a flame graph of one of the box's workers, as SVG"
    )
    return parser.parse_args(words)


def run(options: argparse.Namespace) -> None:
    """Measure every contestant; save the results after each."""
    measurements = Measurements(options.models, options.forms, options.callers, options.seconds)
    results = Results(machine(), settings(options), about(options.contestants))
    results.decoding = {model: decoding.seconds(model) for model in options.models}
    with tempfile.TemporaryDirectory(prefix="trireme-bench-") as folder:
        shared = Path(folder) / "files"
        shared.mkdir()
        files.prepare(shared, Settings.read(os.environ))
        for number in range(options.draws):
            for regime in options.regimes:
                for name in options.contestants:
                    measure_draw(results, name, regime, number, measurements, shared)
                    results.save(options.out)
    write(results, options.out)


def measure_draw(
    results: Results, name: str, regime: str, number: int, measurements: Measurements, shared: Path
) -> None:
    """Measure one draw of one contestant; if that fails, report it and go on with the others."""
    if regime not in find(name).regimes:
        return
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory(prefix=f"trireme-bench-{name}-") as folder:
            contestant = find(name)(free_port(), regime, Path(folder), shared)
            try:
                results.records += list(draw(contestant, number, measurements, progress))
                return
            except CommandError as error:
                reason = str(error)
                progress(f"{name} was not measured: {reason}")
    results.missing[f"{name}, {regime}, draw {number + 1}"] = reason.splitlines()[0]


def about(names: Sequence[str]) -> dict[str, str]:
    return {name: find(name).about for name in names}


def machine() -> dict[str, object]:
    """Describe the machine, with its load before the run: other work distorts the figures."""
    match = re.search("^model name.*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    model = match[1] if match else platform.machine()
    return {
        "when": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{PROCESSES} cores of {model}, {platform.system()} {platform.release()}",
        "instructions": ", ".join(sorted(processor_flags() & (BF16 | INT8))) or "neither bf16 nor int8",
        "python": platform.python_version(),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def settings(options: argparse.Namespace) -> dict[str, object]:
    return {
        "command": f"python -m bench {' '.join(sys.argv[1:])}".strip(),
        "draws": f"{options.draws}, interleaved, a fresh start each",
        "allocator": "glibc's, MALLOC_MMAP_THRESHOLD_ 32 MiB and MALLOC_TRIM_THRESHOLD_ 128 MiB for everyone",
        "ONNX Runtime": f"{PROCESSES} processes with {THREADS} thread each, but trireme: its own defaults",
    }


def progress(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def write(results: Results, out: Path) -> None:
    """Print the tables, and write them beside the results."""
    text = markdown(results)
    out.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
