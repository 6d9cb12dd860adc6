"""The Triton that the tests run on, if it is not the wheel's: ``make test TRITON_SERVER=/path/to/tritonserver``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Triton's own cache, as it is beside a server that has one.
LOCAL_CACHE = "caches/local/libtritoncache_local.so"
#: The Makefile sets it, and every box and Triton of the tests gets it.
VARIABLE = "TRIREME_TRITON_SERVER"
OTHER_TRITON = {VARIABLE: os.environ[VARIABLE]} if os.environ.get(VARIABLE) else {}

#: The wheel's stub loses strings on NumPy 2, and there is no NumPy 1 for Python 3.13.
STUB_NEEDS_NUMPY_1 = not OTHER_TRITON and sys.version_info < (3, 13)


def skip_without_traces() -> None:
    """Skip the test if another Triton was built without traces, as its help says."""
    if OTHER_TRITON:
        command = [OTHER_TRITON[VARIABLE], "--help"]
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if '"opentelemetry" mode' not in process.stdout + process.stderr:
            pytest.skip(f"{OTHER_TRITON[VARIABLE]} cannot send traces")


def skip_without_cache() -> None:
    """Skip the test if another Triton was built without its local cache."""
    if OTHER_TRITON and not (Path(OTHER_TRITON[VARIABLE]).parent.parent / LOCAL_CACHE).is_file():
        pytest.skip(f"{OTHER_TRITON[VARIABLE]} has no local cache")
