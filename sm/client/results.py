"""Results of clients: pictures and encoded bodies, what each field means, and why one cannot be encoded."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from sm.errors import ClientFailed

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Picture:
    """A picture as a result: PNG if the caller accepts ``image/png``, else base64 in JSON."""

    #: RGB uint8 [height, width, 3].
    pixels: NDArray[np.uint8]

    def png(self) -> bytes:
        """Encode the picture as PNG.

        Raises:
            ValueError: The array has a shape that is not a picture's.
        """
        import cv2  # takes 0.1 s to import, and few clients draw

        encoded_ok, encoded = cv2.imencode(".png", self.pixels[..., ::-1])
        if not encoded_ok:
            raise ValueError(f"a picture of shape {self.pixels.shape} cannot be encoded as PNG")
        content: bytes = encoded.tobytes()
        return content

    def as_json(self) -> dict[str, str]:
        """Return the PNG as base64 with its content type, for a JSON answer."""
        return {"image": pybase64.b64encode(self.png()).decode(), "content_type": "image/png"}


@dataclass(frozen=True)
class Encoded:
    """A result that the client encoded itself, such as a recording; it is the answer's body, unchanged.

    In the answer to a list of payloads it is ``{"body": base64, "content_type"}``.

    Example::

        return Encoded(wav, "audio/wav")
    """

    body: bytes
    content_type: str

    def as_json(self) -> dict[str, str]:
        """Return the body as base64 with its content type, for an entry of a list."""
        return {"body": pybase64.b64encode(self.body).decode(), "content_type": self.content_type}


class TableRows(list[dict[str, Any]]):
    """A table as a result: a caller that accepts CSV or JSON lines gets a line for each of these rows."""

    def values(self) -> list[Any]:
        """Return each row as a model's prediction: a value where it has one column, else the row."""
        return [next(iter(row.values())) if len(row) == 1 else row for row in self]


#: Dataclasses are passed to :func:`encodable`, because a picture is one.
OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS


def dumps(value: object) -> bytes:
    """Encode JSON, including NumPy values. NaN and infinity become null, as JSON has neither."""
    return orjson.dumps(value, default=encodable, option=OPTIONS)


def encodable(value: object) -> Any:
    """Convert a value that :mod:`orjson` does not know: NumPy scalars, texts, odd arrays, pictures, files."""
    if isinstance(value, np.ndarray):
        has_rows = value.ndim > 0 and value.dtype.kind in "biufM"
        return np.ascontiguousarray(value) if has_rows else value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Picture | Encoded):
        return value.as_json()
    if is_dataclass(value) and not isinstance(value, type):
        return public_fields(value)
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")


def public_fields(value: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a dataclass without those that begin with an underscore, as :mod:`orjson` does."""
    return {part.name: getattr(value, part.name) for part in fields(value) if not part.name.startswith("_")}


@dataclass(frozen=True, kw_only=True)
class ResultKind:
    """Base class of the kinds."""

    #: The member of the result that the page shows; empty: the result itself.
    items: str = ""
    #: The ``parameters`` to send so that the result has this form, if it is not the default form.
    parameters: Mapping[str, object] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """Return the value of ``x-result``."""
        return {"kind": type(self).__name__.lower(), **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Classes(ResultKind):
    """A list of classes with scores, in any order. The page shows bars, the highest score first.

    Example::

        result = Classes(label="name", score="probability")
    """

    #: The member of an item that holds the class's name.
    label: str = "label"
    #: The member of an item that holds the score.
    score: str = "score"
    #: How to read an item that is a string: ``"{score}:{index}:{label}"``.
    row: str = ""


@dataclass(frozen=True, kw_only=True)
class Boxes(ResultKind):
    """A list of objects in the caller's picture. The page draws their boxes over it."""

    #: The member of an item that holds the class's name.
    label: str = "label"
    #: The member of an item that holds the score.
    score: str = "score"
    #: The member of an item with ``{"x1", "y1", "x2", "y2"}`` or ``[x1, y1, x2, y2]``.
    box: str = "box"
    #: True if corners are shares of width and height, 0 to 1; False if they are the picture's pixels.
    relative: bool = False


@dataclass(frozen=True, kw_only=True)
class Masks(Boxes):
    """Boxes with masks of the picture's size.

    A mask is COCO's ``{"size": [height, width], "counts": "..."}``, or ``{"image": base64}`` with a PNG that
    is white on black.
    """

    #: The member of an item that holds the mask.
    mask: str = "mask"


@dataclass(frozen=True, kw_only=True)
class Text(ResultKind):
    """A text, or a list of texts with scores. The page joins the parts of a stream."""

    #: The member of an item that holds the text.
    text: str = "text"
    #: The member of an item that holds the score.
    score: str = "score"
    #: The part of the caller's text that the result replaces, such as ``[MASK]``; the page marks it.
    mark: str = ""


@dataclass(frozen=True, kw_only=True)
class Table(ResultKind):
    """A list of rows (objects, lists or numbers), or an object of columns."""


#: Levels of nesting that are searched; the encoder itself takes at most 254.
MAX_DEPTH = 255
#: Characters of a name in a path.
MAX_NAME_CHARACTERS = 40
DECODE = "decode text with .decode(), and other bytes to base64"
LIST = "return a list, such as list(...)"
#: The advice for a value, by its type; the first that fits.
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
#: The advice for a value, by a method that it has: a torch tensor, a pydantic model, a pillow image.
METHODS = {
    "tolist": "return .tolist() or a NumPy array",
    "model_dump": "return .model_dump()",
    "__array_interface__": "return sm.client.Picture(numpy.asarray(...))",
}
OTHERWISE = "return a dict, list, text, number, None or a NumPy array"


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
        parts = dict(_parts(value))
        key = next((key for key in parts if not _is_encoded({key: None}, encode)), None)
        if key is not None:
            return path, f"has a key that is {type(key).__name__}: use text, such as .decode() or str(...)"
        bad = next((key for key, part in parts.items() if not _is_encoded(part, encode)), None)
        if bad is None:
            return path, _explain(value)
        path.append(bad if isinstance(bad, int) and not isinstance(value, Mapping) else str(bad))
        value = parts[bad]
    return [], _explain([])


def _parts(value: object) -> Iterator[tuple[Any, object]]:
    """Yield the parts of a container by key or index."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    elif dataclasses.is_dataclass(value) and not isinstance(value, (type, Picture)):
        value = public_fields(value)
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)


def _is_encoded(part: object, encode: Callable[[Any], object]) -> bool:
    try:
        encode(part)
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
