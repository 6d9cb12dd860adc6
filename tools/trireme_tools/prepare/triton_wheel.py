"""Triton's server for a machine without it: its wheel from PyPI, unpacked into the cache.

It is not installed: its own Python dependencies are not needed, and an environment that pipx or uv made
stays as it is.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from sm.commands.build.fetch import Fetcher
from sm.commands.build.package_registries import Registries
from sm.commands.build.package_sources import Source
from sm.commands.progress import Progress
from sm.errors import CommandError
from sm.repository import machine
from sm.repository.cache import Cache
from sm.settings import Settings

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


def provide(settings: Settings, progress: Progress) -> None:
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
        file = Fetcher(cache, Registries(cache, progress, os.environ), progress).fetch(WHEEL, "Triton")
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
