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


@pytest.mark.parametrize(
    ("read", "text", "value", "wrong"),
    [
        (build_request.batch, "1:4:8", (1, 4, 8), "4 1:2 8:4:1 0:1:2 a:b:c 1:2:3:4"),
        (build_request.shapes, "x=1x2,3x2,3x2", ("x", ((1, 2), (3, 2), (3, 2))), "1x2,1x2 x=1x2,1x2 x=2x2,1x2,3x2 x=0x2,1x2,3x2 x=1,1x2,1x2"),
    ],
)  # fmt: skip
def test_an_option_has_three_growing_sizes_or_shapes(read: Any, text: str, value: Any, wrong: str) -> None:
    assert read(text) == value
    for other in wrong.split():
        with pytest.raises(ValueError):
            read(other)


def test_the_shapes_of_one_input_apply_to_all_that_share_its_sizes(tmp_path: Path) -> None:
    graph = embedding(tmp_path / "model.onnx")
    request = build_request_with(shapes=dict([build_request.shapes("ids=1x128,16x128,128x128")]))
    ranges = build_request.ranges(request, graph, 8)
    assert ranges == {"b": (1, 16, 128), "s": (128, 128, 128)}
    assert build_request.fixed(graph, ranges) == ["a s of 128 alone"]
    (profile,) = build_request.profiles(graph, ranges)
    assert (profile.minimum, profile.optimum, profile.maximum) == ((1, 128), (16, 128), (128, 128))


def test_a_free_length_without_a_range_is_refused_with_an_example(tmp_path: Path) -> None:
    graph = embedding(tmp_path / "model.onnx")
    with pytest.raises(CommandError, match="'s'.*--shapes ids=1x128,16x128,"):
        build_request.profiles(graph, build_request.ranges(build_request_with(), graph, 8))


@pytest.mark.parametrize(
    ("batch", "fields", "named"),
    [
        ("b", {"shapes": "y=1x4,1x4,1x4"}, "--shapes .*'y'.* x"),
        ("b", {"shapes": "x=1,1,1"}, "--shapes .*x 1 .* 2"),
        ("b", {"shapes": "x=1x5,1x5,1x5"}, "--shapes .*x .*5 .*4"),
        (1, {"batch": (1, 2, 4)}, "--batch"),
    ],
)
def test_an_option_that_does_not_fit_the_graph_is_refused(
    tmp_path: Path, batch: str | int, fields: dict[str, Any], named: str
) -> None:
    graph = plus_one(tmp_path / "m.onnx", batch)
    if "shapes" in fields:
        fields = {"shapes": dict([build_request.shapes(fields["shapes"])])}
    with pytest.raises(CommandError, match=named):
        build_request.ranges(build_request_with(**fields), graph, 8)


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a b", "a/b"])
def test_a_name_that_triton_cannot_serve_is_refused(name: str) -> None:
    with pytest.raises(CommandError):
        BuildRequest(name, "cpu", Path("out"))
