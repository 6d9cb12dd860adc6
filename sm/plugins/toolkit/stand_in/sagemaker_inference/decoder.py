"""Bodies to arrays."""

from __future__ import annotations

from typing import Any

from sm.errors import BadInput, UnsupportedType
from sm.plugins.toolkit import codecs

from . import errors


def decode(obj: str | bytes, content_type: str) -> Any:
    """Decode one of the toolkit's content types to an array.

    Raises :class:`errors.UnsupportedFormatError` for another type.
    """
    try:
        return codecs.decode(obj, content_type)
    except UnsupportedType as error:
        raise errors.UnsupportedBody(error) from None
    except BadInput as error:
        raise errors.UnreadableBody(error.sentence) from None
