"""An order: its words become sizes, and what does not fit the graph is a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sm.errors import StartError
from sm.tools.build import build_request
from sm.tools.build.build_request import BuildRequest
from tests.support.onnx_graphs import plus_one, words


def wanted(**more: Any) -> BuildRequest:
    return BuildRequest("tiny", "tensorrt", Path("out"), **more)


def test_a_batch_is_three_sizes_that_grow() -> None:
    assert build_request.batch("1:4:8") == (1, 4, 8)
    for text in ("4", "1:2", "8:4:1", "0:1:2", "a:b:c", "1:2:3:4"):
        with pytest.raises(ValueError):
            build_request.batch(text)


def test_shapes_are_an_input_and_three_shapes_that_grow() -> None:
    assert build_request.shapes("ids=1x128,16x128,128x128") == ("ids", ((1, 128), (16, 128), (128, 128)))
    for text in ("1x2,1x2,1x2", "ids=1x2,1x2", "ids=2x2,1x2,3x2", "ids=0x2,1x2,3x2", "ids=1,1x2,1x2"):
        with pytest.raises(ValueError):
            build_request.shapes(text)


def test_one_input_speaks_for_all_that_share_its_sizes(tmp_path: Path) -> None:
    graph = words(tmp_path / "model.onnx")
    said = wanted(shapes=dict([build_request.shapes("ids=1x128,16x128,128x128")]))
    known = build_request.ranges(said, graph, 8)
    assert known == {"b": (1, 16, 128), "s": (128, 128, 128)}
    assert build_request.fixed(graph, known) == ["a s of 128 alone"]
    (profile,) = build_request.profiles(graph, known)
    assert (profile.minimum, profile.optimum, profile.maximum) == ((1, 128), (16, 128), (128, 128))


def test_batches_go_to_the_configurations_largest_where_nobody_says(tmp_path: Path) -> None:
    (profile,) = build_request.profiles(
        plus_one(tmp_path / "m.onnx"), build_request.ranges(wanted(), plus_one(tmp_path / "m.onnx"), 8)
    )
    assert (profile.minimum, profile.optimum, profile.maximum) == ((1, 4), (8, 4), (8, 4))


def test_a_free_length_that_nobody_said_is_asked_for_with_an_example(tmp_path: Path) -> None:
    graph = words(tmp_path / "model.onnx")
    with pytest.raises(StartError, match="'s', for which a plan needs a range: --shapes ids=1x128,16x128,"):
        build_request.profiles(graph, build_request.ranges(wanted(), graph, 8))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("y=1x4,1x4,1x4", "--shapes names 'y'; the inputs are x"),
        ("x=1,1,1", "gives x 1 sizes; it has 2"),
        ("x=1x5,1x5,1x5", "gives x a size of 5 where it has 4"),
    ],
)
def test_shapes_that_do_not_fit_are_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(StartError, match=sentence):
        build_request.ranges(
            wanted(shapes=dict([build_request.shapes(text)])), plus_one(tmp_path / "m.onnx"), 8
        )


def test_a_graph_without_batches_takes_no_batch(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="takes no batches .*: leave out --batch"):
        build_request.ranges(wanted(batch=(1, 2, 4)), plus_one(tmp_path / "m.onnx", batch=1), 8)


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a b", "a/b"])
def test_a_name_that_triton_could_not_serve_is_refused(name: str) -> None:
    with pytest.raises(StartError, match="is no name for a model"):
        BuildRequest(name, "cpu", Path("out"))
