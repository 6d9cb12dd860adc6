"""Find the part of a result that JSON has no form for, and say what a client can return instead."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from sm.client.results import Picture, public_fields
from sm.errors import ClientFailed

#: Levels of nesting that are searched; the encoder itself takes at most 254.
MAX_DEPTH = 255
#: Characters of a name in a path.
MAX_NAME_CHARACTERS = 40
DECODE = "decode text with .decode(), and other bytes to base64"
LIST = "return a list, such as list(...)"
#: What to do with a value, by its type; the first that fits.
NEXT_STEPS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    ((bytes, bytearray, memoryview), DECODE),
    ((set, frozenset, Iterator), LIST),
    (int, "beyond 64 bits; return text, such as str(...)"),
    (str, "with surrogates, so it is not Unicode; replace them with .encode('utf-8', 'replace').decode()"),
    (complex, "return .real and .imag"),
    (datetime.timedelta, "return .total_seconds()"),
    ((datetime.date, datetime.time), "return .isoformat()"),
    (Picture, "its pixels must be uint8 [height, width, 3]"),
    ((dict, list, tuple), "nested too deeply, or contains itself"),
)
#: What to do with a value, by a method that it has: a torch tensor, a pydantic model, a pillow image.
METHODS = {
    "tolist": "return .tolist() or a NumPy array",
    "model_dump": "return .model_dump()",
    "__array_interface__": "return sm.client.Picture(numpy.asarray(...))",
}
OTHERWISE = "return a dict, list, text, number, None or a NumPy array"


class _Key(NamedTuple):
    """A key of a dict, in its place."""

    key: object


def error(sentence: str, root: str, value: object, encode: Callable[[Any], object]) -> ClientFailed:
    """Return the error for a value that ``encode`` refuses: which part of it, what that is, and what to do.

    Args:
        sentence: That the value cannot be sent.
        root: The name of the value, with which the part's path begins.
        value: What a client returned.
        encode: Raises :class:`TypeError` or :class:`ValueError` for what it cannot encode.
    """
    path, explanation = _find(value, encode)
    failed = ClientFailed(f"{sentence}: {root}{''.join(map(_format_step, path))} {explanation}")
    # The log has no names: a caller may have sent them.
    anonymous = "".join(_format_step(step) if isinstance(step, int) else ".…" for step in path)
    failed.log_reason = f"{sentence}: {root}{anonymous} {explanation}"
    return failed


def _find(value: object, encode: Callable[[Any], object]) -> tuple[list[str | int], str]:
    """Return the path of the first part that is refused, and what it is."""
    path: list[str | int] = []
    while len(path) < MAX_DEPTH:
        bad = next(((step, part) for step, part in _parts(value) if not _is_encoded(part, encode)), None)
        if bad is None:
            return path, _explain(value)
        step, value = bad
        if isinstance(value, _Key):
            kind = type(value.key).__name__
            return path, f"has a key that is {kind}: use text, such as .decode() or str(...)"
        path.append(step)
    return [], _explain([])


def _parts(value: object) -> Iterator[tuple[str | int, object]]:
    """Yield the parts of a container, the keys of a dict among them."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    elif dataclasses.is_dataclass(value) and not isinstance(value, (type, Picture)):
        value = public_fields(value)
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield "", _Key(key)
            yield str(key), part
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)


def _is_encoded(part: object, encode: Callable[[Any], object]) -> bool:
    try:
        encode({part.key: None} if isinstance(part, _Key) else part)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _explain(value: object) -> str:
    """Say what a value is and what to return instead."""
    step = next((step for kind, step in NEXT_STEPS if isinstance(value, kind)), None)
    step = step or next((step for name, step in METHODS.items() if hasattr(value, name)), OTHERWISE)
    return f"is {type(value).__name__}: {step}"


def _format_step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    name = step if len(step) <= MAX_NAME_CHARACTERS else f"{step[:MAX_NAME_CHARACTERS]}…"
    return f".{name}" if name.isidentifier() else f"[{name!r}]"
