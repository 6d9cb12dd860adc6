"""Write small wheels that pip can install."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def write_wheel(folder: Path, name: str, version: str = "1.0", text: str = "WORD = 'installed'\n") -> Path:
    """Write a valid wheel with one module, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": text,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        record = ""
        for member, content in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).decode().rstrip("=")
            archive.writestr(member, content)
            record += f"{member},sha256={digest},{len(content)}\n"
        archive.writestr(f"{about}/RECORD", record + f"{about}/RECORD,,\n")
    return path
