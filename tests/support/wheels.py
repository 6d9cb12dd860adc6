"""Write small wheels that pip can install."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path


def wheel(name: str, version: str, text: str) -> bytes:
    """Return a valid wheel with one module."""
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": text,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record, stream = f"{about}/RECORD", io.BytesIO()
    files[record] = "".join(f"{member},,\n" for member in (*files, record))
    with zipfile.ZipFile(stream, "w") as archive:
        for member, content in files.items():
            archive.writestr(member, content)
    return stream.getvalue()


def write_wheel(folder: Path, name: str, version: str = "1.0", text: str = "WORD = 'installed'\n") -> Path:
    """Write a wheel into a folder, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    path.write_bytes(wheel(name, version, text))
    return path
