"""The toolkit's codecs: JSON, CSV and NPY to arrays and back.

What they give is what ``sagemaker-inference`` 1.10 gives, down to the dtype and to ``NaN`` in JSON, with
two exceptions. A ``.npy`` body is never unpickled. And a JSON object stays a ``dict``, as in the Hugging
Face container, where the toolkit wraps it into an array of no dimension.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from sm.errors import BadInput, ClientFailed, NotAcceptable, UnsupportedType

JSON = "application/json"
CSV = "text/csv"
NPY = "application/x-npy"
#: Bodies that reach a script as ``str``; all others are ``bytes``.
TEXTS = (JSON, CSV)


def text_of(body: bytes) -> str:
    """A body in UTF-8; :class:`BadInput` if it is not."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise BadInput("the body is not UTF-8 text") from None


def decode(data: str | bytes, content_type: str) -> Any:
    """A body as an array, or as a ``dict`` where it is a JSON object.

    Raises :class:`UnsupportedType` for another content type and :class:`BadInput` for a body that is not
    what its type says.
    """
    decoder = DECODERS.get(content_type)
    if decoder is None:
        raise UnsupportedType(
            f"the script has no input_fn: {', '.join(DECODERS)} can be read, not {content_type[:100]!r}"
        )
    return decoder(data)


def encode(value: Any, content_type: str) -> str | bytes:
    """An array, or what can become one, in ``content_type``.

    Raises :class:`NotAcceptable` for another type, :class:`ClientFailed` for a value that has no such form.
    """
    encoder = ENCODERS.get(content_type)
    if encoder is None:
        raise NotAcceptable(
            f"the script has no output_fn: {', '.join(ENCODERS)} can be had, not {content_type[:100]!r}"
        )
    try:
        return encoder(value)
    except (TypeError, ValueError) as error:
        raise ClientFailed(f"the prediction cannot be sent as {content_type}: {error}") from error


def to_json(value: Any) -> str:
    """JSON of whatever has a ``tolist``; ``NaN`` stays ``NaN``, as the toolkit's callers know it."""
    return json.dumps(value, default=_listed)


def _from_json(data: str | bytes) -> Any:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the body is not JSON: {error}") from None
    if isinstance(value, dict):
        return value
    try:
        return np.array(value)
    except (ValueError, OverflowError):
        raise BadInput("the lists in the body are not of one length") from None


def _from_csv(data: str | bytes) -> Any:
    text = data.decode() if isinstance(data, bytes) else data
    # genfromtxt takes everything behind a # for a comment.
    if not any(line.partition("#")[0].strip() for line in text.splitlines()):
        raise BadInput("the body has no line of CSV")
    try:
        return np.genfromtxt(io.StringIO(text), dtype=None, delimiter=",", encoding="utf-8")
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"the body is not CSV: {reason}") from None


def _from_npy(data: str | bytes) -> Any:
    body = data.encode() if isinstance(data, str) else data
    try:
        # Not np.load: that would take archives too. And never unpickle what a stranger sends.
        return np.lib.format.read_array(io.BytesIO(body), allow_pickle=False)  # type: ignore[no-untyped-call]
    except Exception:
        # Whatever it trips over, a header that claims terabytes included, is the body's fault.
        raise BadInput("the body is not a .npy array (object arrays are refused)") from None


def _to_csv(value: Any) -> str:
    stream = io.StringIO()
    np.savetxt(stream, value, delimiter=",", fmt="%s")
    return stream.getvalue()


def _to_npy(value: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, value, allow_pickle=False)
    return stream.getvalue()


def _listed(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")


DECODERS: dict[str, Callable[[str | bytes], Any]] = {JSON: _from_json, CSV: _from_csv, NPY: _from_npy}
ENCODERS: dict[str, Callable[[Any], str | bytes]] = {JSON: to_json, CSV: _to_csv, NPY: _to_npy}
