"""Pictures of the demo that may not be in git, extracted from the packages that contain them."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

from sm.commands.build.fetch import Fetcher
from sm.commands.build.package_sources import Source
from sm.repository.cache import Cache


@dataclass(frozen=True)
class DemoPicture:
    """A picture: the ``member`` of the wheel ``source``, shown to ``model`` and kept as ``file``."""

    model: str
    source: Source
    member: str
    file: str


STREET = DemoPicture(
    model="yolov5",
    source=Source(
        kind="pypi",
        name="ultralytics",
        version="8.4.190",
        sha256="bd309728efa168af64d39040136828edd2dbcb4aeceb4510bdff4f3ca0ea01b8",
        size=1_433_396,
        licence="AGPL-3.0",
        note="the demo takes a picture of a street out of it, and runs none of its code",
    ),
    member="ultralytics/assets/bus.jpg",
    file="bus.jpg",
)


def provide(picture: DemoPicture, cache: Cache, fetcher: Fetcher) -> Path:
    """Return the picture's path, after fetching it if needed."""
    path = cache.pictures / picture.file
    if not path.exists():
        with (
            cache.scratch_folder() as workshop,
            zipfile.ZipFile(fetcher.fetch(picture.source, picture.model)) as wheel,
        ):
            (workshop / picture.file).write_bytes(wheel.read(picture.member))
            cache.place(workshop / picture.file, path)
    return path
