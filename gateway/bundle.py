"""Put what the gateway shares with the box beside it, for Lambda: ``python gateway/bundle.py``.

Chalice lays ``vendor/`` at the top of the package, so that ``import sm`` finds the router's modules there and
these find the clients beside them, as in the image.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LEFT_OUT = shutil.ignore_patterns("__pycache__", "sample", "*.md")


def bundle(gateway: Path = HERE, source: Path = HERE.parent) -> Path:
    """Write ``vendor/`` anew."""
    vendor = gateway / "vendor"
    shutil.rmtree(vendor, ignore_errors=True)
    for name in ("sm", "clients"):
        shutil.copytree(source / name, vendor / name, ignore=LEFT_OUT)
    return vendor


if __name__ == "__main__":
    sys.stdout.write(f"{bundle()}\n")
