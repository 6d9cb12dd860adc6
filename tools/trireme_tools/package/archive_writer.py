"""Write a ``.tar.gz`` whose bytes depend on its entries only."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import IO, cast

from sm.commands.progress import Progress
from sm.errors import CommandError
from trireme_tools.package.contents import Entry
from trireme_tools.package.gzip import Gzip

#: Weights hardly compress at any level; the default one takes twice as long for 0.3 % less.
GZIP_LEVEL = 3
#: 1980: GNU tar warns about files from 1970.
TIME = 315_532_800


def write(place: Path, entries: Sequence[Entry], progress: Progress) -> str:
    """Write the archive and return its sha256. An earlier file stays until the new one is complete."""
    staged = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            digest = _write(staged, place.name, entries, progress)
            staged.replace(place)
        finally:
            staged.unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(f"{place} cannot be written: {error}.") from error
    return digest


def _write(staged: Path, name: str, entries: Sequence[Entry], progress: Progress) -> str:
    size = sum(entry.size for entry in entries)
    with staged.open("wb") as target:
        packer = Gzip(target, os.cpu_count() or 1, GZIP_LEVEL)
        try:
            with progress.step(f"packing {name}", size, lambda: packer.size):
                _pack(packer, entries)
        finally:
            packer.stop()
    return packer.sha256.hexdigest()


def _pack(packer: Gzip, entries: Sequence[Entry]) -> None:
    # tarfile raises OSError if a file shrinks meanwhile.
    archive = tarfile.TarFile(
        fileobj=cast(IO[bytes], packer), mode="w", format=tarfile.GNU_FORMAT, copybufsize=2**20
    )
    with closing(archive):
        for entry in entries:
            _add(archive, entry)
    packer.close()


def _add(archive: tarfile.TarFile, entry: Entry) -> None:
    """Add an entry; owner, time and mode do not depend on the machine."""
    header = tarfile.TarInfo(entry.name)
    header.mtime = TIME
    header.mode = 0o755 if entry.executable else 0o644
    if entry.is_folder:
        header.type = tarfile.DIRTYPE
        archive.addfile(header)
        return
    with io.BytesIO(entry.data) if entry.data is not None else entry.source.open("rb") as stream:
        header.size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        archive.addfile(header, stream)
