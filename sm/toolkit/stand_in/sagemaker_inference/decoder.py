"""Bodies to arrays."""

from __future__ import annotations

from typing import Any

from sm.toolkit import codecs


def decode(obj: str | bytes, content_type: str) -> Any:
    return codecs.decode(obj, content_type)
