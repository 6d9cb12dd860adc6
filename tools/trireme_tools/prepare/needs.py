"""Check what the set-up needs before the first byte is fetched, and say what is missing in one sentence.

set_up.py uses this before anything is installed: it imports the standard library alone, and runs on
Python 3.9.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from trireme_tools.prepare.interpreters import SUPPORTED, Interpreter, Unusable

#: Bytes that the packages take in .venv, and the models with their downloads in the cache.
ENVIRONMENT_SIZE, MODELS_SIZE = 1_000_000_000, 1_000_000_000
#: Optional: without it the workers answer at the port themselves.
NGINX = "nginx-light"
#: The oldest C library that Triton's wheel runs on.
GLIBC = (2, 35)


def check_platform(own_triton: bool) -> None:
    """Raise :class:`Unusable` on a machine that Triton's wheel is not for, unless it has another Triton."""
    name, _, version = (_libc() or "another C library").partition(" ")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    fits = (
        platform.system() == "Linux"
        and platform.machine() == "x86_64"
        and name == "glibc"
        and numbers >= GLIBC
    )
    if not fits and not own_triton:
        raise Unusable(
            "Triton's wheel is for Linux on x86-64 with glibc 2.35 or newer (Debian 12, Ubuntu 22.04), "
            f"and this is {platform.system()} on {platform.machine()} with {name} {version}".rstrip()
            + ": build the image (make image), or set TRIREME_TRITON_SERVER to one of this machine."
        )


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""


def check_folders(checkout: Path, cache: Path, sizes: dict[Path, int]) -> None:
    """Raise :class:`Unusable` if a folder cannot be written, or if its disk has too little room.

    Args:
        checkout: The folder that gets ``.venv``.
        cache: The folder of the downloads and models.
        sizes: The bytes that are going to be written, by folder.
    """
    for folder in (checkout, checkout / ".venv"):
        if reason := _why_not_writable(folder):
            raise Unusable(
                f"{folder} cannot be written ({reason}), and .venv is made there: clone the repository "
                "into a folder of yours, or change its owner."
            )
    for folder in (
        cache,
        *(cache / name for name in ("downloads", "models", "repository", "scratch", "lock")),
    ):
        if reason := _why_not_writable(folder):
            raise Unusable(
                f"the cache {folder} cannot be written ({reason}): set TRIREME_CACHE to a folder of yours, "
                "or change its owner."
            )
    by_disk: dict[int, list[tuple[Path, int]]] = {}
    for folder, size in sizes.items():
        existing = _existing(folder)
        by_disk.setdefault(existing.stat().st_dev, []).append((existing, size))
    for entries in by_disk.values():
        needed = sum(size for _, size in entries)
        free = shutil.disk_usage(entries[0][0]).free
        if free < needed:
            raise Unusable(
                f"the first start needs about {needed / 1e9:.1f} GB on the disk of {entries[0][0]}, which "
                f"has "
                f"{free / 1e9:.1f} GB free: make room, or set TRIREME_CACHE to a folder on another disk."
            )


def _why_not_writable(path: Path) -> str:
    """Return the reason why a folder that exists, or the nearest above it, cannot be written."""
    existing = _existing(path)
    if not existing.is_dir():
        return "" if existing.name == "lock" and os.access(existing, os.W_OK) else "it is not a folder"
    if os.statvfs(existing).f_flag & os.ST_RDONLY:
        return "Read-only file system"
    if not os.access(existing, os.W_OK | os.X_OK):
        owner = existing.stat().st_uid
        if owner == os.geteuid():
            return "its permissions forbid it"
        return f"{existing} belongs to {_user(owner)}, and this is {_user(os.geteuid())}"
    return ""


def can_be_written(folder: Path) -> bool:
    """True if this user may write into a folder, or make it where it is not there yet."""
    return not _why_not_writable(folder)


def _existing(path: Path) -> Path:
    """Return the path, or the nearest folder above that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def missing_packages(interpreter: Interpreter, own_triton: bool, has_uv: bool) -> list[str]:
    """Return the packages of Debian or Ubuntu that an interpreter lacks."""
    name = f"python3.{interpreter.minor}"
    missing = []
    if not interpreter.venv and not has_uv:
        missing.append(f"{name}-venv")
    if not interpreter.library and not own_triton:
        missing.append(f"lib{name}")
    return missing


def describe_missing(interpreter: Interpreter, packages: Sequence[str]) -> str:
    """Return a sentence that says what an interpreter lacks, and how to get it here."""
    lacking = [
        "the module ensurepip, which makes .venv"
        if package.endswith("-venv")
        else f"{package}.so.1.0, which Triton runs"
        for package in packages
    ]
    advice = apt_command(packages) or "install a Python that has them, such as pyenv's with --enable-shared"
    if advice.startswith("sudo") and not has_nginx() and apt_name(NGINX):
        advice += f" (and {NGINX}, which is optional)"
    # uv itself is installed with pip.
    can_fetch = not any(package.endswith("-venv") for package in packages)
    without_root = (
        "; without root: make PYTHON=uv serve, which fetches a Python of its own" if can_fetch else ""
    )
    return f"{interpreter} lacks {' and '.join(lacking)}: {advice}{without_root}."


def has_nginx() -> bool:
    """True if nginx is installed; an ordinary user's PATH does not contain sbin."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin") is not None


def python_packages() -> list[str]:
    """Return the packages of a Python that fits, if this distribution has one."""
    for minor in SUPPORTED:
        packages = [f"python3.{minor}-venv", f"libpython3.{minor}"]
        if _has_lists() and all(map(apt_name, packages)):
            return packages
    return []


def python_name(packages: Sequence[str]) -> str:
    """Return the program of these packages."""
    return packages[0].partition("-")[0]


def apt_command(packages: Sequence[str]) -> str:
    """Return the command that installs packages on this machine; empty if one of them does not exist here."""
    names = [apt_name(package) for package in packages]
    if not names or not all(names):
        return ""
    update = "" if _has_lists() else "sudo apt-get update && "
    return f"{update}sudo apt-get install {' '.join(names)}"


def apt_name(package: str) -> str:
    """Return the name under which this distribution and release has a package; empty if it has none."""
    if shutil.which("apt-get") is None:
        return ""
    if not _has_lists():  # nobody knows before apt-get update
        return package
    # Since 2024 libraries with a changed time_t have names of their own: libpython3.12t64 on Ubuntu 24.04.
    for name in (package, f"{package}t64"):
        if _has_candidate(name):
            return name
    return ""


def _has_candidate(package: str) -> bool:
    policy = _apt_cache("policy", package)
    candidate = next((line for line in policy.splitlines() if "Candidate:" in line), "")
    return bool(candidate) and not candidate.rstrip().endswith("(none)")


def _has_lists() -> bool:
    """True if apt knows the packages of its sources; in a fresh container it does not."""
    return _has_candidate("libpython3-stdlib") or any(
        _has_candidate(f"python3.{minor}") for minor in SUPPORTED
    )


def _apt_cache(*arguments: str) -> str:
    if shutil.which("apt-cache") is None:
        return ""
    environment = {**os.environ, "LC_ALL": "C"}
    process = subprocess.run(
        ["apt-cache", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return process.stdout


def can_install() -> bool:
    """True if packages can be installed without asking anybody."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(packages: Sequence[str]) -> bool:
    """Install packages with apt-get; False if that failed."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=environment, capture_output=True, check=False)
    command = ["apt-get", "install", "-y", "-qq", *(apt_name(package) or package for package in packages)]
    return not subprocess.run(command, env=environment, capture_output=True, check=False).returncode
