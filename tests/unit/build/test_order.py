"""A build request: its batch and shapes become sizes, and sizes that do not fit the graph are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sm.build import build_request
from sm.build.build_request import BuildRequest
from sm.errors import CommandError
from tests.support.onnx_graphs import embedding, plus_one


def build_request_with(**fields: Any) -> BuildRequest:
    return BuildRequest("tiny", "tensorrt", Path("out"), **fields)


def test_a_batch_option_has_three_growing_sizes() -> None:
    assert build_request.batch("1:4:8") == (1, 4, 8)
    for text in ("4", "1:2", "8:4:1", "0:1:2", "a:b:c", "1:2:3:4"):
        with pytest.raises(ValueError):
            build_request.batch(text)


def test_a_shapes_option_has_an_input_and_three_growing_shapes() -> None:
    assert build_request.shapes("ids=1x128,16x128,128x128") == ("ids", ((1, 128), (16, 128), (128, 128)))
    for text in ("1x2,1x2,1x2", "ids=1x2,1x2", "ids=2x2,1x2,3x2", "ids=0x2,1x2,3x2", "ids=1,1x2,1x2"):
        with pytest.raises(ValueError):
            build_request.shapes(text)


def test_the_shapes_of_one_input_apply_to_all_that_share_its_sizes(tmp_path: Path) -> None:
    graph = embedding(tmp_path / "model.onnx")
    request = build_request_with(shapes=dict([build_request.shapes("ids=1x128,16x128,128x128")]))
    ranges = build_request.ranges(request, graph, 8)
    assert ranges == {"b": (1, 16, 128), "s": (128, 128, 128)}
    assert build_request.fixed(graph, ranges) == ["a s of 128 alone"]
    (profile,) = build_request.profiles(graph, ranges)
    assert (profile.minimum, profile.optimum, profile.maximum) == ((1, 128), (16, 128), (128, 128))


def test_by_default_batches_go_up_to_the_configurations_maximum(tmp_path: Path) -> None:
    (profile,) = build_request.profiles(
        plus_one(tmp_path / "m.onnx"),
        build_request.ranges(build_request_with(), plus_one(tmp_path / "m.onnx"), 8),
    )
    assert (profile.minimum, profile.optimum, profile.maximum) == ((1, 4), (8, 4), (8, 4))


def test_the_error_for_a_free_length_without_a_range_has_an_example(tmp_path: Path) -> None:
    graph = embedding(tmp_path / "model.onnx")
    with pytest.raises(CommandError, match="'s', for which a plan needs a range: --shapes ids=1x128,16x128,"):
        build_request.profiles(graph, build_request.ranges(build_request_with(), graph, 8))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("y=1x4,1x4,1x4", "--shapes names 'y'; the inputs are x"),
        ("x=1,1,1", "gives x 1 sizes; it has 2"),
        ("x=1x5,1x5,1x5", "gives x a size of 5 where it has 4"),
    ],
)
def test_the_error_for_shapes_that_do_not_fit_says_why(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(CommandError, match=reason):
        build_request.ranges(
            build_request_with(shapes=dict([build_request.shapes(text)])), plus_one(tmp_path / "m.onnx"), 8
        )


def test_a_graph_without_batches_refuses_a_batch_option(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="takes no batches .*: leave out --batch"):
        build_request.ranges(build_request_with(batch=(1, 2, 4)), plus_one(tmp_path / "m.onnx", batch=1), 8)


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a b", "a/b"])
def test_a_name_that_triton_cannot_serve_is_refused(name: str) -> None:
    with pytest.raises(CommandError, match="is not a name for a model"):
        BuildRequest(name, "cpu", Path("out"))
