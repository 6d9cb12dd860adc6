"""Arrays to bodies."""

from __future__ import annotations

from typing import Any

from sm.toolkit import codecs

SUPPORTED_CONTENT_TYPES = set(codecs.ENCODERS)


def encode(array_like: Any, content_type: str) -> str | bytes:
    return codecs.encode(array_like, content_type)
