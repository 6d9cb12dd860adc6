"""The fixture that runs ``sm``."""

from __future__ import annotations

from tests.support.sm_command import RunSm, sm

__all__ = ["RunSm", "sm"]
