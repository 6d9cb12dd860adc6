"""Arrays to bodies."""

from __future__ import annotations

from typing import Any

from sm.errors import ClientFailed, NotAcceptable
from sm.plugins.toolkit import codecs

from . import errors

SUPPORTED_CONTENT_TYPES = set(codecs.ENCODERS)


def encode(array_like: Any, content_type: str) -> str | bytes:
    """Encode an array, or a value that can become one, in one of :data:`SUPPORTED_CONTENT_TYPES`.

    Raises :class:`errors.UnsupportedFormatError` for another type.
    """
    try:
        return codecs.encode(array_like, content_type)
    except NotAcceptable as error:
        raise errors.UnsupportedAnswer(error) from None
    except ClientFailed as error:
        raise errors.UnwritableAnswer(error.sentence) from error
