"""``code/requirements.txt``: install it if a setting says so, otherwise report what is missing.

What is installed goes into a folder of the cache named by what was asked for, never among the box's own
packages, and is found behind those: the box's own versions win.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
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

log = logging.getLogger(__name__)
FILE = "requirements.txt"
#: Wheels that travel with the code. Where they are, nothing else is asked.
WHEELS = "wheels"


def install_or_check(code: Path, cache: Path, run: Path, install: bool) -> None:
    """Make what ``code/requirements.txt`` asks for importable, in this process and its children.

    Without ``install`` a package that is missing is a warning in the log; with it, one that cannot be had
    is a :class:`StartError`. The folder is below ``cache``, or ``run`` where that cannot be written.
    """
    file = code / FILE
    if not file.is_file():
        return
    if install:
        site.addsitedir(str(installed(file, cache, run)))
        return
    lacking = sorted(missing(file.read_text(errors="replace")))
    if lacking:
        log.warning(
            "%s asks for %s, which is not there: TRIREME_INSTALL_REQUIREMENTS=true installs it",
            file,
            ", ".join(lacking),
        )


def missing(text: str) -> Iterator[str]:
    """The packages named in a requirements file of which no version is there."""
    for line in text.splitlines():
        name = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line.strip())
        if name:
            try:
                importlib.metadata.distribution(name[0])
            except importlib.metadata.PackageNotFoundError:
                yield name[0]


def installed(file: Path, cache: Path, run: Path) -> Path:
    """The folder with what ``file`` asks for, filled if it is not there yet."""
    name = f"requirements/{identity(file)}"
    folder = cache / name
    if folder.is_dir():
        return folder
    if not _writable(folder.parent):
        folder = run / name
        folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.is_dir():
        _fill(folder, file)
    return folder


def identity(file: Path) -> str:
    """A name for what ``file`` asks for: its text, the wheels beside it, this Python."""
    wheels = [f"{path.name} {path.stat().st_size}" for path in sorted((file.parent / WHEELS).glob("*"))]
    said = "\n".join([file.read_text(errors="replace"), *wheels, sys.version, os.uname().machine])
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def _fill(folder: Path, file: Path) -> None:
    """Install into a folder of our own beside it, which then takes its place: two may do so at once."""
    log.info("installing %s", file)
    staged = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        _pip(staged, file)
        staged.chmod(0o755)
        staged.rename(folder)
    except OSError as error:
        if not folder.is_dir():
            raise StartError(f"{file}: it cannot be installed into {folder}: {error.strerror}.") from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _pip(target: Path, file: Path) -> None:
    wheels = file.parent / WHEELS
    sources = ("--no-index", "--find-links", str(wheels)) if wheels.is_dir() else ()
    done = subprocess.run(
        (
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"),
            *("--target", str(target), "--requirement", str(file), *sources),
        ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        # What a requirement says of a path is meant from where the file lies.
        cwd=file.parent,
    )
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
        reason = next((line for line in lines if line.startswith("ERROR: ")), lines[-1])
        raise StartError(f"{file}: pip cannot install it: {reason.removeprefix('ERROR: ').rstrip('.')}.")


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
