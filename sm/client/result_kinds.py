"""Describe a client's result, so that the page can show it: classes, boxes, masks, text or a table.

A client declares one of them as ``result``. The OpenAPI document has it as ``x-result``; requests ignore it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


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
    #: What the result replaces in the caller's text, such as ``[MASK]``; the page marks the replacement.
    mark: str = ""


@dataclass(frozen=True, kw_only=True)
class Table(ResultKind):
    """A list of rows (objects, lists or numbers), or an object of columns."""
