"""What a client's result is, so that a page can show it: classes, boxes, masks, text or a table.

A client declares one as ``result``. It is in the OpenAPI document as ``x-result``. No request uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ResultKind:
    """What all kinds have."""

    #: The member of the result that holds what is shown; empty: the result itself.
    items: str = ""
    #: The ``parameters`` with which the result has this form, where it has others by default.
    parameters: Mapping[str, object] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """The value of ``x-result``."""
        return {"kind": type(self).__name__.lower(), **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Classes(ResultKind):
    """A list of classes with scores, the likeliest first: shown as bars."""

    #: Members of an item.
    label: str = "label"
    score: str = "score"
    #: How an item that is a string is read: ``"{score}:{index}:{label}"``.
    row: str = ""


@dataclass(frozen=True, kw_only=True)
class Boxes(ResultKind):
    """A list of objects in the picture that was sent: drawn over it."""

    label: str = "label"
    score: str = "score"
    #: The member with ``{"x1", "y1", "x2", "y2"}`` or ``[x1, y1, x2, y2]``.
    box: str = "box"
    #: Whether corners are shares of width and height; else they are pixels of the picture.
    relative: bool = False


@dataclass(frozen=True, kw_only=True)
class Masks(Boxes):
    """Boxes that have masks too, of the picture's size.

    A mask is COCO's ``{"size": [height, width], "counts": "..."}`` or a PNG as ``{"image": base64}``,
    white on black.
    """

    mask: str = "mask"


@dataclass(frozen=True, kw_only=True)
class Text(ResultKind):
    """A text, or a list of texts with scores. The parts of a stream are joined."""

    text: str = "text"
    score: str = "score"
    #: What the result has replaced in the text that was sent, such as ``[MASK]``; the page marks it.
    mark: str = ""


@dataclass(frozen=True, kw_only=True)
class Table(ResultKind):
    """Rows as objects, lists or numbers, or an object of columns."""
