"""Install ``code/requirements.txt`` if a setting says so; otherwise log what is missing.

Packages go into a folder of the cache that is named after the requirements, and come after the box's own
packages on ``sys.path``: the box's versions win.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sm.errors import StartError
from sm.settings import HERE

log = logging.getLogger(__name__)
REQUIREMENTS_FILE = "requirements.txt"
#: The folder of wheels beside the code. If it exists, no index is used.
WHEELS_FOLDER = "wheels"
#: The image's pip. Its environment has none, so that no client imports it.
PIP_FILE = HERE / "pip.pyz"


def install_or_check(code: Path, cache: Path, run: Path, install: bool) -> None:
    """Make the packages of ``code/requirements.txt`` importable, in this process and its children.

    Without ``install``, missing packages are logged. With it they are installed below ``cache``, or below
    ``run`` if ``cache`` is read-only.

    Raises:
        StartError: A package cannot be installed.
    """
    file = code / REQUIREMENTS_FILE
    if not file.is_file():
        return
    if install:
        site.addsitedir(str(ensure_installed(file, cache, run)))
        return
    missing_packages = sorted(find_missing(file.read_text(errors="replace")))
    if missing_packages:
        log.warning(
            "%s requires %s, which is not installed: TRIREME_INSTALL_REQUIREMENTS=true installs it",
            file,
            ", ".join(missing_packages),
        )


def find_missing(text: str) -> Iterator[str]:
    """Yield the packages of a requirements file that are not installed in any version."""
    for line in text.splitlines():
        name = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line.strip())
        if name:
            try:
                importlib.metadata.distribution(name[0])
            except importlib.metadata.PackageNotFoundError:
                yield name[0]


def ensure_installed(file: Path, cache: Path, run: Path) -> Path:
    """Return the folder with the packages of ``file``, after installing them if needed."""
    name = f"requirements/{requirements_digest(file)}"
    folder = cache / name
    if folder.is_dir():
        return folder
    if not _writable(folder.parent):
        folder = run / name
        folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        _install(folder, file)
    return folder


def requirements_digest(file: Path) -> str:
    """Return a name for the requirements: a digest of the text, the wheels beside it, and this Python."""
    wheels = [
        f"{path.name} {path.stat().st_size}" for path in sorted((file.parent / WHEELS_FOLDER).glob("*"))
    ]
    inputs = "\n".join([file.read_text(errors="replace"), *wheels, sys.version, os.uname().machine])
    return hashlib.sha256(inputs.encode()).hexdigest()[:32]


def _install(folder: Path, file: Path) -> None:
    """Install into a temporary folder, which is then renamed: two processes may install at once."""
    log.info("installing %s", file)
    staged = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        _run_pip(staged, file)
        staged.chmod(0o755)
        staged.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise StartError(f"{file}: it cannot be installed into {folder}: {error.strerror}.") from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def find_pip() -> tuple[str, ...]:
    """Return the command line of pip: this environment's, or the image's, which is one file beside it."""
    if importlib.util.find_spec("pip"):
        return (sys.executable, "-m", "pip")
    if PIP_FILE.is_file():
        return (sys.executable, str(PIP_FILE))
    raise StartError(
        f"there is no pip to install code/requirements.txt with: neither in {sys.prefix} nor as {PIP_FILE}. "
        "python -m ensurepip adds one."
    )


def _run_pip(target: Path, file: Path) -> None:
    wheels = file.parent / WHEELS_FOLDER
    sources = ("--no-index", "--find-links", str(wheels)) if wheels.is_dir() else ()
    process = subprocess.run(
        (
            *(*find_pip(), "install", "--quiet", "--no-input", "--disable-pip-version-check"),
            *("--target", str(target), "--requirement", str(file), *sources),
        ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        # Relative paths in a requirement start at its file.
        cwd=file.parent,
    )
    if process.returncode:
        lines = [line.strip() for line in process.stderr.splitlines() if line.strip()] or ["no reason given"]
        reason = next((line for line in lines if line.startswith("ERROR: ")), lines[-1])
        raise StartError(f"{file}: pip cannot install it: {reason.removeprefix('ERROR: ').rstrip('.')}.")


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
