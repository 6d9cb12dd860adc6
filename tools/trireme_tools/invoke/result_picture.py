"""Draw an answer on the picture that was sent: boxes, masks, and classes as bars under it."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pybase64
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from sm.client.images import Label, Pixels, colour, decode, draw
from sm.client.results import Boxes, Classes, Masks, ResultKind, Table, Text
from sm.errors import CommandError, TriremeError
from trireme_tools.check.discovery import fetch_json
from trireme_tools.invoke.messages import InvokeReply

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
#: The share of a mask's colour in an object's pixels.
TINT = 0.45
#: The most classes that are drawn, and the pixels of one.
MAX_CLASSES, CLASS_HEIGHT = 5, 26
#: Pixels of the narrowest picture with classes under it.
MIN_WIDTH = 360


class DrawnRow(NamedTuple):
    """One row of a result."""

    label: str
    score: float | None
    box: tuple[float, float, float, float] | None = None
    mask: NDArray[np.bool_] | None = None

    @property
    def text(self) -> str:
        return self.label if self.score is None else f"{self.label} {self.score:.2f}"

    @property
    def class_id(self) -> int:
        """A number for the label, the same on every picture."""
        return zlib.crc32(self.label.encode()) % 997


def check_file(file: Path) -> None:
    """Raise :class:`CommandError` unless a picture can be written to ``file``. Call it before the request."""
    if file.suffix.lower() not in SUFFIXES:
        raise CommandError(f"--save-picture {file} ends with none of {', '.join(SUFFIXES)}.")
    if not file.parent.is_dir():
        raise CommandError(f"--save-picture {file}: there is no folder {file.parent}.")


def save(pixels: Pixels, file: Path) -> None:
    """Write a picture in the form that the file's ending says."""
    try:
        Image.fromarray(pixels).save(file)
    except OSError as error:
        raise CommandError(f"the picture cannot be written to {file}: {error.strerror or error}.") from None


def picture_in(reply: InvokeReply, result: Any) -> bytes | None:
    """Return the picture that the answer itself is; None if it is none."""
    if reply.content_type.startswith("image/"):
        return reply.body
    if isinstance(result, dict) and str(result.get("content_type", "")).startswith("image/"):
        return pybase64.b64decode(str(result.get("image", "")))
    return None


def draw_result(kind: ResultKind | None, result: Any, sent: bytes) -> Pixels:
    """Return a copy of the picture with the result on it. :class:`CommandError` if it cannot be drawn."""
    if not isinstance(kind, Classes | Boxes):
        what = (
            f"its result is a {type(kind).__name__}" if kind else "its client does not say what its result is"
        )
        raise CommandError(
            f"the answer cannot be drawn on the picture: {what}, and boxes, masks and classes can. "
            "Leave out --save-picture."
        )
    rows = result[kind.items] if kind.items and isinstance(result, dict) and kind.items in result else result
    pixels = decode_picture(sent)
    if not isinstance(rows, list):
        raise CommandError(f"the answer cannot be drawn: it is not a list of {type(kind).__name__.lower()}.")
    try:
        found = list(read_rows(kind, rows, pixels))
    except (LookupError, TypeError, ValueError) as error:
        raise CommandError(
            f"the answer cannot be drawn: a row is not as its client's {type(kind).__name__} says ({error})."
        ) from None
    if isinstance(kind, Classes):
        return add_class_bars(pixels, found[:MAX_CLASSES])
    # The likeliest comes first, and has to lie on top.
    for each in reversed(found):
        if each.mask is not None:
            pixels[each.mask] = pixels[each.mask] * (1 - TINT) + np.array(colour(each.class_id)) * TINT
    return draw(pixels, [Label(each.box, each.text, each.class_id) for each in reversed(found) if each.box])


def decode_picture(content: bytes) -> Pixels:
    """Return a writable copy of a picture's pixels, upright."""
    try:
        return decode(content).copy()
    except TriremeError as error:
        raise CommandError(f"what was sent is not a picture to draw on: {error.sentence}.") from None


def read_rows(kind: ResultKind, rows: Sequence[Any], pixels: Pixels) -> Iterator[DrawnRow]:
    """Yield the rows of a result as its client describes them."""
    height, width = pixels.shape[:2]
    for row in rows:
        if isinstance(kind, Classes):
            label, score = (
                _from_text(kind.row, row) if isinstance(row, str) else (row[kind.label], row[kind.score])
            )
            yield DrawnRow(str(label), float(score))
        elif isinstance(kind, Boxes):
            score = float(row[kind.score]) if row.get(kind.score) is not None else None
            mask = None
            if isinstance(kind, Masks) and row.get(kind.mask) is not None:
                mask = _mask(row[kind.mask], height, width)
            box = _corners(row.get(kind.box), (width, height) if kind.relative else (1, 1))
            if box is None and mask is None:
                raise ValueError(f"it has no {kind.box!r}")
            yield DrawnRow(str(row.get(kind.label, "")), score, box, mask)


def add_class_bars(pixels: Pixels, found: Sequence[DrawnRow]) -> Pixels:
    """Add a bar for each class below the picture."""
    if not found:
        return pixels
    picture = Image.fromarray(pixels)
    width = max(MIN_WIDTH, picture.width)
    canvas = Image.new("RGB", (width, picture.height + CLASS_HEIGHT * len(found)), "white")
    canvas.paste(picture, ((width - picture.width) // 2, 0))
    pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(CLASS_HEIGHT * 0.6)
    scores = [abs(each.score or 0.0) for each in found]
    most = 1.0 if max(scores) <= 1 else max(scores)
    for place, (each, score) in enumerate(zip(found, scores, strict=True)):
        top = picture.height + place * CLASS_HEIGHT
        pen.rectangle((0, top + 2, round(width * score / most), top + CLASS_HEIGHT - 3), fill=(168, 214, 229))
        pen.text((8, top + CLASS_HEIGHT * 0.15), each.text, fill="black", font=font)
    return np.asarray(canvas)


def _corners(box: Any, scale: tuple[int, int]) -> tuple[float, float, float, float] | None:
    """Return x1, y1, x2, y2 in pixels; None if there is no box."""
    if box is None:
        return None
    x1, y1, x2, y2 = (box[name] for name in ("x1", "y1", "x2", "y2")) if isinstance(box, Mapping) else box[:4]
    across, down = scale
    return float(x1) * across, float(y1) * down, float(x2) * across, float(y2) * down


def _mask(mask: Mapping[str, Any], height: int, width: int) -> NDArray[np.bool_]:
    """Return a mask [height, width], from COCO's run lengths or a PNG."""
    if "counts" in mask:
        own_height, own_width = mask["size"]
        pixels = decode_runs(mask["counts"], int(own_height), int(own_width))
    else:
        with Image.open(io.BytesIO(pybase64.b64decode(mask["image"], validate=True))) as picture:
            pixels = np.asarray(picture.convert("L")) > 0
    if pixels.shape != (height, width):
        raise ValueError(
            f"a mask has {pixels.shape[1]} by {pixels.shape[0]} pixels, the picture {width} by {height}"
        )
    return pixels


def _from_text(pattern: str, row: str) -> tuple[str, str]:
    """Read ``"{score}:{index}:{label}"``; what is between braces last takes the rest."""
    names = re.findall(r"{(\w+)}", pattern)
    between = [re.escape(text) for text in re.split(r"{\w+}", pattern)]
    groups = ["(.*?)"] * (len(names) - 1) + ["(.*)"]
    expression = "".join(text + group for text, group in zip(between, groups, strict=False)) + between[-1]
    found = re.fullmatch(expression, row, re.DOTALL)
    if not found or not names:
        raise ValueError(f"{row[:60]!r} is not {pattern!r}")
    read = dict(zip(names, found.groups(), strict=True))
    return read["label"], read["score"]


#: A letter has five bits of a number from this code on; the sixth says that another letter follows.
FIRST_LETTER, BITS, MORE, SIGN = 48, 5, 0x20, 0x10
#: From this run on a number is the difference to the run two before.
FIRST_DIFFERENCE = 3


def decode_runs(counts: str | Sequence[int], height: int, width: int) -> NDArray[np.bool_]:
    """Return the mask [height, width]. ValueError if the runs do not fill it."""
    lengths = _unpack(counts) if isinstance(counts, str) else [int(length) for length in counts]
    if min(lengths, default=-1) < 0 or sum(lengths) != height * width:
        raise ValueError(f"a mask's runs do not fill {width} by {height} pixels")
    marks = np.arange(len(lengths)) % 2 == 1
    return np.repeat(marks, lengths).reshape(width, height).T


def _unpack(text: str) -> list[int]:
    """Return the lengths in COCO's compressed text."""
    lengths: list[int] = []
    value = shift = 0
    for letter in text.encode():
        group = letter - FIRST_LETTER
        value |= (group & (MORE - 1)) << shift
        shift += BITS
        if not group & MORE:
            value -= 1 << shift if group & SIGN else 0
            lengths.append(value + lengths[-2] if len(lengths) >= FIRST_DIFFERENCE else value)
            value = shift = 0
    return lengths


KINDS: Mapping[str, type[ResultKind]] = {
    kind.__name__.lower(): kind for kind in (Classes, Boxes, Masks, Text, Table)
}


def fetch_kind(url: str, model: str | None, api_key: str) -> ResultKind | None:
    """Return what the box at ``url`` says of the model's result; None if it says nothing.

    Raises:
        CommandError: The box does not answer, or it serves several clients and none is named.
    """
    document = fetch_json(f"{url.rstrip('/')}/openapi.json", api_key)
    schemas = document.get("components", {}).get("schemas", {})
    clients = {
        name.removesuffix(".Request"): row for name, row in schemas.items() if name.endswith(".Request")
    }
    if model is None and len(clients) > 1:
        raise CommandError(
            f"name the model whose answer is drawn, with --model: {', '.join(sorted(clients))}."
        )
    name = model or next(iter(clients), "")
    return parse_kind(clients.get(name, {}).get("x-result"))


def parse_kind(described: Any) -> ResultKind | None:
    """Return the kind that an ``x-result`` describes; None for one of a later version."""
    kind = KINDS.get(described.get("kind", "")) if isinstance(described, dict) else None
    if kind is None:
        return None
    known = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in described.items() if name in known})


def guess_kind(result: Any) -> ResultKind | None:
    """Return the kind that a result looks like, for an endpoint whose document cannot be read."""
    for items, rows in {"": result, **(result if isinstance(result, dict) else {})}.items():
        if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
            for kind, member in ((Masks, "mask"), (Boxes, "box")):
                if all(member in row for row in rows):
                    return kind(items=items)
            if all({"label", "score"} <= row.keys() for row in rows):
                return Classes(items=items)
    return None
