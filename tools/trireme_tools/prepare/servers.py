"""nginx and Triton for a machine without them: packages of Debian, and Triton's wheel in the cache."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sm.errors import CommandError, StartError
from sm.repository import machine
from sm.settings import Settings
from trireme_tools.cache import Cache
from trireme_tools.prepare import needs
from trireme_tools.prepare.packages import Fetcher, PackageFile
from trireme_tools.progress import Progress

MAX_ATTEMPTS = 3
#: The first Python for which the wheel has no stub.
NEWER_THAN_STUBS = (3, 14)
#: Debian's maintainer scripts would start nginx on port 80; this file's exit status 101 forbids it.
POLICY = Path("/usr/sbin/policy-rc.d")


def provide_packages(progress: Progress) -> None:
    """Install nginx if it is missing and this is root, or print the command: the box runs without it, too."""
    if needs.has_nginx():
        return
    if not needs.can_install():
        progress.say(
            f"nginx is not installed, and the box runs without it; to have it: sudo apt-get install "
            f"{needs.NGINX}"
        )
        return
    try:
        with progress.step(f"installing {needs.NGINX} with apt-get"):
            install([needs.NGINX])
    except CommandError as error:
        progress.say(f"{error} Run: apt-get install {needs.NGINX}")


def check_library(settings: Settings) -> None:
    """Check that Triton's wheel can run this Python; as root, install the shared library that it needs.

    Raises:
        StartError: It cannot.
    """
    if not is_missing(settings) and not machine.is_wheel(machine.find_server(settings)):
        return
    if sys.version_info >= NEWER_THAN_STUBS:
        raise StartError(
            f"Triton's wheel has programs for Python 3.8 to 3.13, and this is {machine.VERSION}: use one "
            f"of them, or "
            "set TRIREME_TRITON_SERVER to a Triton for this Python."
        )
    try:
        machine.libpython()
    except StartError:
        if not (needs.can_install() and needs.install([f"libpython{machine.VERSION}"])):
            raise
        machine.libpython()


def install(packages: list[str]) -> None:
    """Run ``apt-get install`` with retries, and without starting services."""
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    reason = ""
    with no_services():
        for attempt in range(1, MAX_ATTEMPTS + 1):
            subprocess.run(["apt-get", "update", "-qq"], env=quiet, capture_output=True, check=False)
            command = ["apt-get", "install", "-y", "-qq", *packages]
            process = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
            if process.returncode == 0:
                return
            reason = (process.stderr.strip().splitlines() or ["no reason given"])[-1]
            time.sleep(2 * attempt)
    raise CommandError(f"apt-get could not install {', '.join(packages)}: {reason}.")


@contextmanager
def no_services() -> Iterator[None]:
    """Keep maintainer scripts from starting services, unless the machine has a policy already."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


#: The version in locks/requirements.lock; a test compares the two.
WHEEL = PackageFile(
    kind="pypi",
    name="nvidia-pytriton",
    version="0.7.0",
    sha256="21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df",
    size=55_369_373,
    licence="Apache-2.0",
    note="Triton's server",
)
#: Bytes of its unpacked files.
UNPACKED = 150_000_000
#: The permissions that a zip file keeps in the upper half of a member's attributes.
MODE_SHIFT, PERMISSIONS = 16, 0o777


def provide_triton(settings: Settings, progress: Progress) -> None:
    """Fetch and unpack the wheel, unless there is a tritonserver. Raises :class:`CommandError`."""
    if not is_missing(settings):
        return
    cache = Cache(settings.cache)
    with cache.locked(progress.say):
        if is_missing(settings):  # another process may have done it meanwhile
            _install(cache, progress)


def is_missing(settings: Settings) -> bool:
    """True if there is no tritonserver, or an older one in the cache."""
    cache = Cache(settings.cache)
    if cache.triton.exists():
        return not (cache.triton / f"nvidia_pytriton-{WHEEL.version}.dist-info").is_dir()
    try:
        machine.find_server(settings)
    except CommandError:
        return settings.triton_server is None  # a wrong setting is for its reader to mend
    return False


def _install(cache: Cache, progress: Progress) -> None:
    try:
        file = Fetcher(cache, progress, os.environ).fetch(WHEEL, "Triton")
    except CommandError as error:
        raise CommandError(
            f"{error} Triton's wheel is for Linux on x86-64 with glibc 2.35 or newer (Debian 12, Ubuntu "
            "22.04); set TRIREME_TRITON_SERVER if this machine has a tritonserver."
        ) from None
    cache.check_free_space(UNPACKED, "unpacking Triton's server")
    with cache.scratch_folder() as workshop:
        with progress.step(f"Triton: unpacking into {cache.triton}"):
            unpack(file, workshop / "triton")
        cache.place(workshop / "triton", cache.triton)
    cache.discard(file)


def unpack(file: Path, folder: Path) -> None:
    """Unpack a wheel with the permissions of its files, which ``extractall`` leaves out."""
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            path = Path(archive.extract(member, folder))
            mode = member.external_attr >> MODE_SHIFT & PERMISSIONS
            if mode and not member.is_dir():
                path.chmod(mode)
