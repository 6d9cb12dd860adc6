"""Unpack the bundle: wheels into a folder for PYTHONPATH, programs into one for PATH. Standard library only."""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

#: Parts of a bundle.
WHEELS, PROGRAMS, WEIGHTS = "wheels", "programs.tar.xz", "weights"
DONE_FILE = "unpacked.txt"


def unpack(bundle: Path, work: Path) -> Mapping[str, str]:
    """Unpack into ``work`` once, and return the environment variables that make it usable."""
    site, programs = work / "site", work / "programs"
    listing = "\n".join(f"{path.name} {path.stat().st_size}" for path in sorted(bundle.rglob("*")))
    done_file = work / DONE_FILE
    if not (done_file.is_file() and done_file.read_text() == listing):
        for wheel in sorted((bundle / WHEELS).glob("*.whl")):
            _extract(wheel, site)
        if (bundle / PROGRAMS).is_file():
            with tarfile.open(bundle / PROGRAMS) as archive:
                archive.extractall(programs, filter="data")
        done_file.write_text(listing)
    root = Path(__file__).resolve().parents[2]
    return {
        "PYTHONPATH": _joined(root, root / "tools", site, os.environ.get("PYTHONPATH")),
        "PATH": _joined(programs / "bin", os.environ.get("PATH")),
    }


def _extract(wheel: Path, site: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            path = Path(archive.extract(entry, site))
            mode = entry.external_attr >> 16
            if mode & 0o111 and path.is_file():
                path.chmod(0o755)


def _joined(*parts: Path | str | None) -> str:
    return os.pathsep.join(str(part) for part in parts if part)
