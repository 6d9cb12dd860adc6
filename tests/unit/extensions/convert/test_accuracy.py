"""A built graph is compared with its source at sizes at which it can run, and refused if it differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from sm.errors import CommandError
from tests.support.onnx_graphs import batch_sum, embedding, plus_one, plus_row, strided, write_graph
from trireme_extensions.convert.accuracy import Comparison
from trireme_extensions.convert.build_arguments import Range
from trireme_extensions.convert.graph_runner import SizeSearch, session
from trireme_extensions.convert.onnx_graph import Graph


@pytest.mark.parametrize(
    ("make_graph", "max_batch", "ranges", "sizes"),
    [
        (embedding, 2, {}, ("1x1", "1x16", "1x77", "2x1", "2x16", "2x77")),
        (embedding, 2, {"b": (1, 2, 2), "s": (5, 6, 900)}, ("1x5", "1x6", "1x900", "2x5", "2x6")),
        (plus_one, 1, {}, ("1",)),
        (lambda file: plus_one(file, batch=2), 8, {}, ("1",)),
    ],
    ids=["free lengths", "only those asked for", "no batch above the maximum", "a fixed batch"],
)
def test_the_sizes_that_are_tried(
    tmp_path: Path, make_graph: Callable[[Path], Graph], max_batch: int, ranges: Any, sizes: tuple[str, ...]
) -> None:
    graph = make_graph(tmp_path / "model.onnx")
    assert Comparison(graph, max_batch, ranges=ranges).against(graph.path).sizes == sizes


def test_a_graph_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    graph = batch_sum(tmp_path / "other.onnx")
    with pytest.raises(CommandError, match="y "):
        Comparison(plus_one(tmp_path / "model.onnx"), 1).against(graph.path)


def test_the_error_for_a_graph_that_cannot_be_run_names_its_file_or_opset(tmp_path: Path) -> None:
    graph = plus_one(tmp_path / "model.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x08")
    with pytest.raises(CommandError, match=r"broken\.onnx"):
        Comparison(graph, 1).against(tmp_path / "broken.onnx")
    model = onnx.load(graph.path)
    model.opset_import[0].version = onnx.defs.onnx_opset_version()
    onnx.save(model, graph.path)
    with pytest.raises(CommandError, match=r"opset \d+"):
        session(graph.path)


def make_search(graph: Graph, **ranges: Range) -> SizeSearch:
    return SizeSearch(graph, session(graph.path), ranges)


def test_the_stride_of_a_graph_and_a_size_named_in_an_error_are_found(tmp_path: Path) -> None:
    graph = strided(tmp_path / "model.onnx", 32)
    search = make_search(graph)
    assert [tuple(sizes.values()) for sizes in search.find()] == [(1, 1), (32, 32), (64, 64), (64, 128)]
    assert search.refused == ["16", "77"]
    assert "3x64" in Comparison(graph, 3).against(graph.path).sizes
    assert {"n": 203} in make_search(plus_row(tmp_path / "model.onnx", 203)).find()


def test_a_requested_size_that_does_not_work_is_an_error(tmp_path: Path) -> None:
    graph = strided(tmp_path / "model.onnx", 32)
    with pytest.raises(CommandError, match=r"40x64.* --no-compare"):
        make_search(graph, h=(40, 64, 96), w=(64, 64, 96)).find()


def test_a_graph_that_runs_at_no_size_is_refused_by_the_option_for_its_sizes(tmp_path: Path) -> None:
    text = "(float[1,n] x) => (float[rows,50000] y) <int64[2] shape = {-1, 50000}> { y = Reshape(x, shape) }"
    with pytest.raises(CommandError, match="--shapes x="):
        make_search(write_graph(tmp_path / "m.onnx", text)).find()
