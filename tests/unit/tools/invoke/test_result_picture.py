"""An answer is drawn as its kind says, and what does not fit is one sentence."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pybase64
import pytest
from PIL import Image

from sm.client.result_kinds import Boxes, Classes, Masks, ResultKind, Text
from sm.errors import StartError
from sm.tools.invoke import result_kind
from sm.tools.invoke.invoke_request import InvokeRequest
from sm.tools.invoke.result_picture import draw_result
from sm.tools.invoke.run_lengths import decode_runs


def picture(width: int = 200, height: int = 100) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (128, 128, 128)).save(buffer, "PNG")
    return buffer.getvalue()


def changed(kind: ResultKind, result: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Where the picture is another."""
    return np.asarray((draw_result(kind, result, picture()) != 128).any(axis=2))


def test_a_box_is_drawn_at_its_corners_whether_in_pixels_or_in_shares() -> None:
    pixels = changed(Boxes(), [{"label": "cat", "score": 0.9, "box": [20, 40, 120, 90]}])
    box = {"x1": 0.1, "y1": 0.4, "x2": 0.6, "y2": 0.9}
    shares = changed(
        Boxes(items="found", relative=True), {"found": [{"label": "cat", "score": 0.9, "box": box}]}
    )
    assert np.array_equal(pixels, shares)
    assert pixels[89, 20:120].all()
    assert not pixels[91:].any()


def test_a_mask_tints_its_pixels_from_run_lengths_and_from_a_png() -> None:
    mask = np.zeros((100, 200), bool)
    mask[10:30, 50:80] = True
    columns = np.flatnonzero(np.diff(np.concatenate([[0], mask.T.ravel(), [0]])))
    runs = [int(each) for each in np.diff(np.concatenate([[0], columns, [mask.size]]))]
    buffer = io.BytesIO()
    Image.fromarray(mask).save(buffer, "PNG")
    png = pybase64.b64encode(buffer.getvalue()).decode()
    for form in ({"size": [100, 200], "counts": runs}, {"image": png, "content_type": "image/png"}):
        assert np.array_equal(changed(Masks(), [{"label": "cat", "score": 1, "mask": form}]), mask)


def as_text(lengths: list[int]) -> str:
    """COCO's compression: from the fourth run on the difference to the one two before, five bits a letter."""
    letters = []
    for place, length in enumerate(lengths):
        number = length - (lengths[place - 2] if place > 2 else 0)
        more = True
        while more:
            group, number = number & 0x1F, number >> 5
            more = number != (-1 if group & 0x10 else 0)
            letters.append(chr(48 + group + (0x20 if more else 0)))
    return "".join(letters)


def test_cocos_compressed_run_lengths_are_the_plain_ones() -> None:
    lengths = [5010, 20, 80, 20, 80, 1000, 3, 13_787]
    assert np.array_equal(decode_runs(as_text(lengths), 100, 200), decode_runs(lengths, 100, 200))
    assert decode_runs(as_text(lengths), 100, 200).sum() == 20 + 20 + 1000 + 13_787


def test_classes_may_be_texts() -> None:
    drawn = draw_result(Classes(row="{score}:{index}:{label}"), ["0.7:3:a:b", "0.3:1:c"], picture())
    assert drawn.shape[0] > 100


@pytest.mark.parametrize(
    ("kind", "result", "sentence"),
    [
        (Text(), "a text", "its result is a Text, and boxes, masks and classes can"),
        (None, {"x": 1}, "its client does not say what its result is"),
        (Boxes(), {"x": 1}, "it is no list of boxes"),
        (Boxes(), [{"label": "cat"}], "a row is not as its client's Boxes says"),
        (Classes(row="{score}:{label}"), ["none"], "'none' is not '{score}:{label}'"),
        (
            Masks(),
            [{"mask": {"size": [1, 2], "counts": [2]}}],
            "a mask has 2 by 1 pixels, the picture 200 by 100",
        ),
        (Masks(), [{"mask": {"size": [100, 200], "counts": [2]}}], "do not fill"),
    ],
)
def test_what_does_not_fit_is_one_sentence(kind: ResultKind | None, result: Any, sentence: str) -> None:
    with pytest.raises(StartError) as caught:
        draw_result(kind, result, picture())
    assert sentence in str(caught.value)


def test_the_kind_is_the_one_of_the_document_or_what_the_result_looks_like() -> None:
    assert result_kind.parse(Boxes(items="found").describe()) == Boxes(items="found")
    assert result_kind.parse({"kind": "hologram"}) is None
    assert result_kind.guess({"found": [{"box": [1, 2, 3, 4]}]}) == Boxes(items="found")
    assert result_kind.guess([{"label": "cat", "score": 1}]) == Classes()
    assert result_kind.guess([1, 2]) is None


def test_parameters_go_with_a_picture_and_into_json_where_none_are_given() -> None:
    raw = InvokeRequest(b"x", "image/png", model="yolov5").with_parameters({"format": "detections"})
    assert raw.attributes == "modelname=yolov5;format=detections"
    body = json.dumps({"payload": {}, "parameters": {"format": "rows"}}).encode()
    assert InvokeRequest(body, "application/json").with_parameters({"format": "x", "k": 1}).body == (
        b'{"payload": {}, "parameters": {"format": "rows", "k": 1}}'
    )
