"""The Triton that the tests run on, if it is not the wheel's: ``make test TRITON_SERVER=/path/to/tritonserver``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

#: The Makefile sets it, and every box and Triton of the tests gets it.
VARIABLE = "TRIREME_TRITON_SERVER"
SERVER = os.environ.get(VARIABLE, "")
OTHER_TRITON = {VARIABLE: SERVER} if SERVER else {}

#: The wheel's stub loses strings on NumPy 2, and there is no NumPy 1 for Python 3.13.
STUB_NEEDS_NUMPY_1 = not OTHER_TRITON and sys.version_info < (3, 13)


@cache
def _help() -> str:
    process = subprocess.run([SERVER, "--help"], capture_output=True, text=True, timeout=60)
    return process.stdout + process.stderr


#: What a test may need of Triton: whether this one has it, and why the test is skipped if it does not.
FEATURES: dict[str, tuple[Callable[[], bool], str]] = {
    "traces": (lambda: not SERVER or '"opentelemetry" mode' in _help(), "this Triton cannot send traces"),
    "cache": (
        lambda: not SERVER or (Path(SERVER).parent.parent / "caches/local/libtritoncache_local.so").is_file(),
        "this Triton has no local cache",
    ),
    "strings": (lambda: np.__version__.startswith("1."), "the wheel's stubs lose strings on NumPy 2"),
}


def has(feature: str) -> bool:
    """True if this Triton has one of :data:`FEATURES`."""
    return FEATURES[feature][0]()


def needs(feature: str) -> pytest.MarkDecorator:
    """Skip a test, or a module's, on a Triton without one of :data:`FEATURES`."""
    return pytest.mark.skipif(not has(feature), reason=FEATURES[feature][1])
