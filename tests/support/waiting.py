"""Wait until something holds."""

from __future__ import annotations

import time
from pathlib import Path


def eventually(path: Path) -> bool:
    end = time.monotonic() + 10
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.02)
    return path.exists()
