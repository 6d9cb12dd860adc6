"""nginx and Triton for a machine without them: packages of Debian, and Triton's wheel in the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sm.commands.progress import Progress
from sm.errors import CommandError
from sm.repository import machine
from sm.repository.cache import Cache
from sm.settings import Settings
from trireme_tools.prepare.packages import Fetcher, Source

MAX_ATTEMPTS = 3
#: Debian's maintainer scripts would start nginx on port 80; this file's exit status 101 forbids it.
POLICY = Path("/usr/sbin/policy-rc.d")


def provide_packages(progress: Progress) -> None:
    """Install what is missing, or print the command. The box can run without nginx, but not without the
    library.
    """
    missing = [*([] if has_nginx() else ["nginx-light"]), *([] if has_libpython() else [library_package()])]
    if not missing:
        return
    if not can_install():
        progress.say(f"missing: {', '.join(missing)}. Run: sudo apt-get install {' '.join(missing)}")
        return
    try:
        with progress.step(f"installing {', '.join(missing)} with apt-get"):
            install(missing)
    except CommandError as error:
        progress.say(f"{error} Run: apt-get install {' '.join(missing)}")


def has_nginx() -> bool:
    """True if nginx is installed; an ordinary user's PATH does not contain sbin."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin") is not None


def has_libpython() -> bool:
    try:
        machine.libpython()
    except CommandError:
        return False
    return True


def library_package() -> str:
    return f"libpython{machine.VERSION}"


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


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


#: The version in requirements.lock; a test compares the two.
WHEEL = Source(
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
