"""``sm invoke`` writes files by their content type, and draws results on their picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pybase64
import pytest
from PIL import Image

from sm.client.results import Boxes, Classes, Masks, ResultKind
from tests.support.hostile_pictures import encode
from trireme_tools.invoke import result_picture
from trireme_tools.invoke.load_test import histogram, measure
from trireme_tools.invoke.messages import InvokeReply
from trireme_tools.invoke.result_picture import decode_runs, draw_result
from trireme_tools.invoke.showing import format_reply

KINDS = {
    "audio/wav": "wav",
    "audio/ogg; codecs=opus": "ogg",
    "image/webp": "webp",
    "application/octet-stream": "bin",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_is_written_to_a_file_of_its_type(kind: str, tmp_path: Path) -> None:
    name = f"speech.{KINDS[kind]}"
    assert name in next(iter(format_reply(InvokeReply(200, kind, b"\x00\x01RIFF"), "speech", tmp_path)))
    assert (tmp_path / name).read_bytes() == b"\x00\x01RIFF"


def grey_png(width: int = 200, height: int = 100) -> bytes:
    return encode(Image.new("RGB", (width, height), (128, 128, 128)), "PNG")


def changed_pixels(kind: ResultKind, result: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which pixels the drawing changes."""
    return np.asarray((draw_result(kind, result, grey_png()) != 128).any(axis=2))


def test_a_box_is_drawn_from_pixels_or_relative_coordinates() -> None:
    from_pixels = changed_pixels(Boxes(), [{"label": "cat", "score": 0.9, "box": [20, 40, 120, 90]}])
    box = {"x1": 0.1, "y1": 0.4, "x2": 0.6, "y2": 0.9}
    from_shares = changed_pixels(
        Boxes(items="found", relative=True), {"found": [{"label": "cat", "score": 0.9, "box": box}]}
    )
    assert np.array_equal(from_pixels, from_shares)
    assert from_pixels[89, 20:120].all()
    assert not from_pixels[91:].any()


def test_a_mask_is_drawn_from_run_lengths_or_a_png() -> None:
    mask = np.zeros((100, 200), bool)
    mask[10:30, 50:80] = True
    columns = np.flatnonzero(np.diff(np.concatenate([[0], mask.T.ravel(), [0]])))
    runs = [int(run) for run in np.diff(np.concatenate([[0], columns, [mask.size]]))]
    png = pybase64.b64encode(encode(Image.fromarray(mask), "PNG")).decode()
    for encoded_mask in ({"size": [100, 200], "counts": runs}, {"image": png, "content_type": "image/png"}):
        assert np.array_equal(
            changed_pixels(Masks(), [{"label": "cat", "score": 1, "mask": encoded_mask}]), mask
        )


def test_compressed_run_lengths_of_coco_are_decoded() -> None:
    lengths = [5010, 20, 80, 20, 80, 1000, 3, 13_787]
    # In COCO's form: differences to the run two before, from the fourth on, in characters of 5 bits.
    assert np.array_equal(decode_runs("bl4d0`200dn0cMc_<", 100, 200), decode_runs(lengths, 100, 200))


def test_the_result_kind_comes_from_the_document_or_is_guessed_from_the_result() -> None:
    assert result_picture.parse_kind(Boxes(items="found").describe()) == Boxes(items="found")
    assert result_picture.parse_kind({"kind": "hologram"}) is None
    assert result_picture.guess_kind({"found": [{"box": [1, 2, 3, 4]}]}) == Boxes(items="found")
    assert result_picture.guess_kind([{"label": "cat", "score": 1}]) == Classes()
    assert result_picture.guess_kind([1, 2]) is None


def test_ctrl_c_keeps_the_measured_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[InvokeReply] = []

    def send_request() -> InvokeReply:
        sent.append(InvokeReply(200, "application/json", b"{}"))  # a mock's count is not safe for two threads
        return sent[-1]

    monkeypatch.setattr("concurrent.futures.Future.result", Mock(side_effect=KeyboardInterrupt))
    assert measure(send_request, 10_000_000, 2).request_count == len(sent) < 10_000_000


def test_an_outlier_does_not_flatten_the_histogram() -> None:
    rows = [row.split() for row in histogram([0.010 + index / 10_000 for index in range(99)] + [60.0])]
    assert (len(rows), rows[0][0], float(rows[-1][0]) < 25) == (12, "10.0", True)
