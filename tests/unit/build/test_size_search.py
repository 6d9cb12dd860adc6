"""The size search finds sizes at which a graph can run."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from sm.build.accuracy import Comparison
from sm.build.build_request import Range
from sm.build.graph_runner import SizeSearch, session
from sm.build.onnx_graph import Graph
from sm.errors import CommandError
from tests.support.onnx_graphs import embedding, plus_row, save_graph, strided

FLOAT = TensorProto.FLOAT


def make_search(graph: Graph, **ranges: Range) -> SizeSearch:
    return SizeSearch(graph, session(graph.path), ranges)


def test_the_stride_of_a_graph_is_found(tmp_path: Path) -> None:
    graph = strided(tmp_path / "model.onnx", 32)
    search = make_search(graph)
    assert [tuple(sizes.values()) for sizes in search.find()] == [(1, 1), (32, 32), (64, 64), (64, 128)]
    assert search.refused == ["16", "77"]
    assert "3x64" in Comparison(graph, 3).against(graph.path).sizes


def test_a_size_named_in_an_error_is_tried(tmp_path: Path) -> None:
    search = make_search(plus_row(tmp_path / "model.onnx", 203))
    assert {"n": 203} in search.find()


def test_only_the_requested_sizes_are_tried(tmp_path: Path) -> None:
    graph = embedding(tmp_path / "model.onnx")
    comparison = Comparison(graph, 2, ranges={"b": (1, 2, 2), "s": (5, 6, 900)})
    assert comparison.against(graph.path).sizes == ("1x5", "1x6", "1x900", "2x5", "2x6")


def test_a_requested_size_that_does_not_work_is_an_error(tmp_path: Path) -> None:
    graph = strided(tmp_path / "model.onnx", 32)
    with pytest.raises(CommandError, match=r"40x64.* --no-compare"):
        make_search(graph, h=(40, 64, 96), w=(64, 64, 96)).find()


def test_a_graph_that_runs_at_no_size_is_refused_by_the_option_for_its_sizes(tmp_path: Path) -> None:
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [-1, 50_000])
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    inputs, outputs = {"x": (FLOAT, [1, "n"])}, {"y": (FLOAT, ["rows", 50_000])}
    graph = save_graph(tmp_path / "m.onnx", [node], inputs, outputs, (shape,))
    with pytest.raises(CommandError, match="--shapes x="):
        make_search(graph).find()
