"""A built graph is compared with its source at several sizes, and refused if it differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sm.build.accuracy import Comparison
from sm.build.onnx_graph import Graph
from sm.errors import CommandError
from tests.support.onnx_graphs import batch_sum, embedding, plus_one


@pytest.mark.parametrize(
    ("make_graph", "max_batch", "sizes"),
    [
        (embedding, 2, ("1x1", "1x16", "1x77", "2x1", "2x16", "2x77")),
        (plus_one, 1, ("1",)),
        (lambda file: plus_one(file, batch=2), 8, ("1",)),
    ],
    ids=["free lengths", "no batch above the maximum", "a fixed batch"],
)
def test_the_sizes_that_are_tried(
    tmp_path: Path, make_graph: Callable[[Path], Graph], max_batch: int, sizes: tuple[str, ...]
) -> None:
    graph = make_graph(tmp_path / "model.onnx")
    assert Comparison(graph, max_batch).against(graph.path).sizes == sizes


def test_a_graph_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    graph = batch_sum(tmp_path / "other.onnx")
    with pytest.raises(CommandError, match="y "):
        Comparison(plus_one(tmp_path / "model.onnx"), 1).against(graph.path)


def test_the_error_for_a_graph_that_cannot_be_run_names_the_file(tmp_path: Path) -> None:
    graph = plus_one(tmp_path / "model.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x08")
    with pytest.raises(CommandError, match=r"broken\.onnx"):
        Comparison(graph, 1).against(tmp_path / "broken.onnx")
