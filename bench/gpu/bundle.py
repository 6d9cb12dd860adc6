"""Make the folder to copy to a machine with a GPU: wheels, two programs, small weights and golden tensors.

    make gpu-bundle

The server's wheel keeps the stubs of one Python only. ResNet's and BERT's weights would not fit, so they are random,
from a seed, unless ``--real`` names them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.contestant import MODELS
from bench.gpu import weights
from bench.gpu.unpacking import PROGRAMS, WEIGHTS, WHEELS
from bench.gpu.weights import sample_evenly
from bench.recording import Recording
from bench.work import runner
from sm.commands.build.changes import DESCRIPTION, Changes
from sm.commands.build.onnx_graph import Graph
from sm.commands.build.samples import InProcess
from sm.errors import CommandError
from sm.plugins.loading import ClientSource, load
from sm.plugins.registry import check
from sm.repository.cache import Cache
from sm.router.answers import dumps
from sm.settings import HERE, Settings
from trireme_tools.prepare.demo import prepare
from trireme_tools.prepare.recipes import Recipe

MIB = 2**20
MAX_BUNDLE_MIB = 60
#: The models whose own weights are packed, as int8. Those of the others would not fit.
MODELS_WITH_OWN_WEIGHTS = ("yolov5",)
PYTHON = "3.12"
#: The router's packages that a machine for GPU work lacks. It has torch, onnx, onnxruntime, OpenCV, NumPy,
#: Pillow, uvloop, grpcio, protobuf, tokenizers, prometheus-client, requests, h11, click and anyio.
PACKAGES = (
    *("flask", "werkzeug", "blinker", "itsdangerous", "gunicorn", "wsproto"),
    *("tritonclient", "python-rapidjson", "simplejpeg", "orjson", "pybase64"),
    *("pydantic", "pydantic-core", "annotated-types", "typing-inspection"),
    *("fastapi", "starlette", "uvicorn", "httptools", "opentelemetry-api"),
)
SERVER = "nvidia-pytriton"
#: Parts of the server's wheel to keep.
KEPT_PARTS = ("pytriton/tritonserver/bin/", "pytriton/tritonserver/backends/", "nvidia_pytriton.libs/")
#: Libraries that every Linux has, or that belong to the machine's C library.
SYSTEM_LIBRARIES = ("libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "libgcc_s.so", "ld-linux")


def make(out: Path, python: str, real: Sequence[str]) -> float:
    """Fill ``out`` from scratch. Returns its size in MiB. Raises :class:`CommandError` if it is too large."""
    shutil.rmtree(out, ignore_errors=True)
    (out / WHEELS).mkdir(parents=True)
    prepare(Settings.read(os.environ))
    collect_wheels(out / WHEELS, python)
    collect_programs(out / PROGRAMS)
    for model in MODELS:
        add_model(model, out / WEIGHTS / model, "int8" if model in real else "random")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / MIB
    if size > MAX_BUNDLE_MIB:
        raise CommandError(
            f"{out} has {size:.1f} MiB, which is more than {MAX_BUNDLE_MIB}: name fewer models with --real."
        )
    return size


def collect_wheels(folder: Path, python: str) -> None:
    """Download the wheels for ``python`` on Linux, in the versions of the locks."""
    with tempfile.TemporaryDirectory() as downloads:
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check")
        # The versions alone: not all of these packages are in the lock.
        locks = (HERE / name for name in ("requirements-dev.lock", "requirements.lock"))
        lines = [line for lock in locks for line in lock.read_text().splitlines()]
        versions = Path(downloads, "versions.txt")
        versions.write_text("\n".join(line.removesuffix(" \\") for line in lines if not line.startswith(" ")))
        constraint = ("--constraint", str(versions))
        platforms = [f"--platform=manylinux_2_{glibc}_x86_64" for glibc in (35, 34, 31, 28, 27, 24, 17)]
        platforms += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64"]
        target = ("--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms)
        completed = subprocess.run(
            (*pip, *target, *constraint, "--dest", downloads, *PACKAGES, SERVER),
            capture_output=True,
            text=True,
            check=False,
        )
        if completed.returncode:
            raise CommandError(f"the wheels could not be downloaded: {completed.stderr.strip()[-600:]}")
        for wheel in Path(downloads).glob("*.whl"):
            repack(wheel, folder / wheel.name, python)


def repack(wheel: Path, target: Path, python: str) -> None:
    """Copy a wheel, compressed with LZMA instead of deflate, and of the server's wheel only the needed parts."""
    server = wheel.name.startswith(SERVER.replace("-", "_"))
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_LZMA) as packed:
        for entry in source.infolist():
            if server and not _is_kept(entry.filename, python):
                continue
            packed_entry = zipfile.ZipInfo(entry.filename)
            packed_entry.external_attr, packed_entry.compress_type = entry.external_attr, zipfile.ZIP_LZMA
            packed.writestr(packed_entry, source.read(entry))


def _is_kept(name: str, python: str) -> bool:
    if "libpython" in name:  # for another Python's stub
        return False
    stub = f"pytriton/tritonserver/python_backend_stubs/{python}/"
    return name.startswith((*KEPT_PARTS, stub)) or name in ("pytriton/__init__.py",) or ".dist-info/" in name


def collect_programs(target: Path) -> None:
    """Pack nginx and wrk with their libraries, each with a script that sets the library path."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("bin", "lib", "real"):
            (folder / part).mkdir()
        for program in ("nginx", "wrk"):
            path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
            if path is None:
                raise CommandError(
                    f"there is no {program} to pack; on Debian and Ubuntu: apt-get install {program}"
                )
            shutil.copy(path, folder / "real" / program)
            for library in _libraries(Path(path)):
                shutil.copy(library, folder / "lib" / library.name)
            script = folder / "bin" / program
            script.write_text(
                '#!/bin/sh\nhere=$(cd "$(dirname "$0")/.." && pwd)\n'
                f'LD_LIBRARY_PATH="$here/lib:$LD_LIBRARY_PATH" exec "$here/real/{program}" "$@"\n'
            )
            script.chmod(0o755)
        with tarfile.open(target, "w:xz", preset=2) as archive:
            for packed in sorted(folder.iterdir()):
                archive.add(packed, packed.name)


def _libraries(program: Path) -> Iterator[Path]:
    listing = subprocess.run(("ldd", str(program)), capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow and not name.startswith(SYSTEM_LIBRARIES):
            yield Path(rest.split(" (")[0])


def add_model(model: str, folder: Path, kind: weights.Kind) -> None:
    """Pack a model's graph and labels, and the restored graph's outputs for the client's sample."""
    settings = Settings.read(os.environ)
    recipe = Recipe.load(HERE / "model" / model)
    built = Cache(settings.cache).models / model / recipe.key
    weights.pack(built / "model.onnx", folder, kind)
    for path in built.iterdir():
        if path.name != "model.onnx":
            shutil.copy(path, folder / path.name)
    with tempfile.TemporaryDirectory() as workshop:
        graph = Path(workshop) / "model.onnx"
        weights.restore(folder, graph)
        _add_golden(model, graph, folder, Path(workshop))


def _add_golden(model: str, graph: Path, folder: Path, workshop: Path) -> None:
    source = HERE / "model" / model
    changes = Changes(uint8=Changes.read(source).uint8)
    served = changes.graphs(Graph.read(graph), source / DESCRIPTION, workshop).served
    recording = Recording(runner(served.path, 1))
    repository = workshop / "repository"
    (repository / model).mkdir(parents=True)
    for path in (*folder.iterdir(), *source.glob("*.json")):
        shutil.copy(path, repository / model / path.name)
    client_file = HERE / "clients" / model / "client.py"
    client_source, triton = ClientSource(model, client_file), InProcess(served, recording)
    client = load(client_source, triton, repository)
    check(client, client_source, triton)
    payload = json.loads((client_file.parent / "sample" / "payload.json").read_bytes())
    answer = client.inference(client.payload.model_validate(payload))
    (folder / "golden-answer.json").write_bytes(dumps(answer))
    np.savez_compressed(
        folder / "golden.npz",
        **{f"input.{name}": array for name, array in recording.inputs.items()},
        **{f"output.{name}": sample_evenly(array) for name, array in recording.outputs.items()},
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.bundle", description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "build" / "gpu-bundle")
    parser.add_argument("--python", default=PYTHON, help="the Python of the machine with the GPU")
    parser.add_argument(
        "--real",
        nargs="*",
        default=MODELS_WITH_OWN_WEIGHTS,
        choices=MODELS,
        help="models to pack with their own weights",
    )
    options = parser.parse_args()
    try:
        size = make(options.out, options.python, options.real)
    except CommandError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.out}: {size:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
