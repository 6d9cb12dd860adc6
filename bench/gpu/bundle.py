"""Make the archive to copy to a machine with a GPU: a Python, the router's packages, Triton, nginx and wrk.

    make gpu-bundle

Triton's stub embeds its Python's shared library, which many machines lack. So a whole Python travels; torch is the
machine's own.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sm.errors import CommandError
from sm.settings import HERE

MIB = 2**20
#: A lent machine takes 64 MiB, the checkout included.
MAX_BUNDLE_MIB = 46
ARCHIVE = "bundle.tar.xz"
PYTHON = "3.12"
#: In the versions of the locks.
PACKAGES = Path(__file__).with_name("packages.txt")
#: Parts of the server's package to keep; its libpython is for another Python.
KEPT_OF_SERVER = (
    "tritonserver/bin",
    "tritonserver/backends",
    f"tritonserver/python_backend_stubs/{PYTHON}",
    "__init__.py",
)
#: Parts of a Python that nothing here imports.
LEFT_OUT_OF_PYTHON = (
    "site-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "__pycache__",
)
#: Libraries that belong to every Linux's C library.
SYSTEM_LIBRARIES = ("libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "libgcc_s.so", "ld-linux")


def make(out: Path, python: Path) -> float:
    """Fill ``out`` from scratch. Returns its size in MiB. Raises :class:`CommandError` if it is too large."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        collect_python(python, folder / "python")
        collect_packages(python, folder / "site")
        collect_programs(folder / "programs")
        compress = ("tar", "--create", "--use-compress-program=xz -6 --threads=0", "--directory", folder)
        subprocess.run(
            (*compress, "--file", out / ARCHIVE, *sorted(part.name for part in folder.iterdir())), check=True
        )
    size = (out / ARCHIVE).stat().st_size / MIB
    if size > MAX_BUNDLE_MIB:
        raise CommandError(f"{out / ARCHIVE} has {size:.1f} MiB, which is more than {MAX_BUNDLE_MIB}.")
    return size


def collect_python(python: Path, target: Path) -> None:
    """Copy a Python with its shared library, and the libraries of its modules."""
    code = "import sys, sysconfig, json; print(json.dumps([sys.base_prefix, sysconfig.get_config_var('LIBDIR'), sysconfig.get_config_var('INSTSONAME')]))"
    prefix, libraries, name = json.loads(
        subprocess.run((python, "-c", code), capture_output=True, check=True).stdout
    )
    library = Path(libraries, name)
    if library.suffix == ".a" or not library.is_file():
        raise CommandError(
            f"{python} has no shared library: install one that was configured with --enable-shared."
        )
    standard = Path(prefix, "lib", f"python{PYTHON}")
    ignored = shutil.ignore_patterns(*LEFT_OUT_OF_PYTHON, "config-*", "*.a")
    shutil.copytree(standard, target / "lib" / standard.name, ignore=ignored)
    (target / "bin").mkdir()
    shutil.copy(Path(prefix, "bin", f"python{PYTHON}"), target / "bin")
    (target / "bin" / "python3").symlink_to(f"python{PYTHON}")
    shutil.copy(library, target / "lib")
    subprocess.run(("strip", target / "bin" / f"python{PYTHON}", target / "lib" / library.name), check=True)
    for module in (target / "lib" / standard.name / "lib-dynload").glob("*.so"):
        if module.name.startswith("_tkinter"):
            module.unlink()  # it needs all of X11
            continue
        for needed in _libraries(module):
            if needed.name != library.name:
                shutil.copy(needed, target / "lib" / needed.name)


def collect_packages(python: Path, target: Path) -> None:
    """Install the packages in the versions of the locks, and of the server's only what the box starts."""
    locks = (
        HERE / "locks" / name
        for name in ("requirements-dev.lock", "requirements.lock", "requirements-build.lock")
    )
    lines = [line for lock in locks for line in lock.read_text().splitlines()]
    constraints = target.with_name("constraints.txt")
    constraints.write_text(
        "\n".join(line.removesuffix(" \\") for line in lines if not line.startswith((" ", "#")))
    )
    pip = (
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
        "--disable-pip-version-check",
    )
    completed = subprocess.run(
        (
            *pip,
            "--only-binary=:all:",
            "--constraint",
            constraints,
            "--target",
            target,
            "--requirement",
            PACKAGES,
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    constraints.unlink()
    if completed.returncode:
        raise CommandError(f"the packages could not be installed: {completed.stderr.strip()[-600:]}")
    for module in target.rglob("*.so"):
        if "pytriton" not in str(module.relative_to(target)):
            subprocess.run(("strip", "--strip-debug", module), check=True)
    server = target / "pytriton"
    whole = server.rename(target / "whole")
    for part in KEPT_OF_SERVER:
        (server / part).parent.mkdir(parents=True, exist_ok=True)
        (whole / part).rename(server / part)
    shutil.rmtree(whole)
    libraries = target / "nvidia_pytriton.libs"
    for library in libraries.glob("libpython*"):
        library.unlink()
    for library in libraries.glob("libicudata*"):
        leave_out_icu_data(library)


def leave_out_icu_data(library: Path) -> None:
    """Put an empty library in the place of ICU's 28 MiB of data, which nothing here reads: as ICU's own stubdata."""
    version = library.name.rpartition(".so.")[2].partition(".")[0]
    code = f"const char icudt{version}_dat[4096] = {{0}};"
    command = ("gcc", "-shared", "-x", "c", "-", "-o", library, f"-Wl,-soname,{library.name}")
    subprocess.run(command, input=code.encode(), check=True)


def collect_programs(folder: Path) -> None:
    """Copy nginx and wrk with their libraries, each with a script that sets the library path."""
    for part in ("bin", "lib", "real"):
        (folder / part).mkdir(parents=True)
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
            f'LD_LIBRARY_PATH="$here/lib" exec "$here/real/{program}" "$@"\n'
        )
        script.chmod(0o755)


def _libraries(program: Path) -> Iterator[Path]:
    """Yield the libraries that a program or module needs, without the C library's."""
    listing = subprocess.run(("ldd", str(program)), capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow and rest.startswith("/") and not name.startswith(SYSTEM_LIBRARIES):
            yield Path(rest.split(" (")[0])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.bundle", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "build" / "gpu-bundle")
    parser.add_argument(
        "--python", default=f"python{PYTHON}", help=f"a Python {PYTHON} with a shared library, to pack"
    )
    options = parser.parse_args()
    python = shutil.which(options.python)
    if python is None:
        print(f"there is no {options.python}: name one with --python", file=sys.stderr)
        return 1
    try:
        size = make(options.out, Path(python))
    except CommandError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.out / ARCHIVE}: {size:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
