"""Copy what the gateway shares with the box into ``vendor/``, for Lambda: ``python gateway/bundle.py``.

Chalice copies the content of ``vendor/`` to the top of the package, so that ``import sm`` works there
and finds the clients beside it, as in the image.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXCLUDED = shutil.ignore_patterns("__pycache__", "sample", "*.md")


def bundle(gateway: Path = HERE, source: Path = HERE.parent) -> Path:
    """Replace ``vendor/`` and return it."""
    vendor = gateway / "vendor"
    shutil.rmtree(vendor, ignore_errors=True)
    for name in ("sm", "clients"):
        shutil.copytree(source / name, vendor / name, ignore=EXCLUDED)
    return vendor


if __name__ == "__main__":
    sys.stdout.write(f"{bundle()}\n")
