"""What is built gives its source's answers, at several sizes; what does not is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.errors import StartError
from sm.tools.build.accuracy import Comparison
from tests.support.onnx_graphs import code, one_size, plus_one, words


def test_the_same_graph_differs_by_nothing(tmp_path: Path) -> None:
    graph = plus_one(tmp_path / "model.onnx")
    found = Comparison(graph, 8).against(graph.path)
    assert (found.max_error, found.mean_error, found.sizes) == (0, 0, ("1", "3", "8"))


def test_lengths_are_tried_where_they_are_free(tmp_path: Path) -> None:
    graph = words(tmp_path / "model.onnx")
    sizes = Comparison(graph, 2).against(graph.path).sizes
    assert sizes == ("1x1", "1x16", "1x77", "2x1", "2x16", "2x77")


def test_integers_are_ones_that_the_graph_can_take(tmp_path: Path) -> None:
    assert words(tmp_path / "words.onnx").bounds == {"ids": 10}
    assert code(tmp_path / "code.onnx").bounds == {"ids": 6}


def test_no_batch_beyond_the_largest_is_tried(tmp_path: Path) -> None:
    graph = plus_one(tmp_path / "model.onnx")
    assert Comparison(graph, 1).against(graph.path).sizes == ("1",)


def test_a_graph_of_one_batch_size_is_tried_at_that(tmp_path: Path) -> None:
    graph = plus_one(tmp_path / "model.onnx", batch=2)
    assert Comparison(graph, 8).against(graph.path).sizes == ("1",)


def test_a_graph_whose_records_are_not_alone_is_refused(tmp_path: Path) -> None:
    graph = one_size(tmp_path / "model.onnx")
    with pytest.raises(StartError, match="y differs from its source by up to .* for inputs of 3: the graph"):
        Comparison(graph, 8).against(graph.path)


def test_another_graph_is_refused(tmp_path: Path) -> None:
    graph = one_size(tmp_path / "other.onnx")
    with pytest.raises(StartError, match="y differs from its source by up to"):
        Comparison(plus_one(tmp_path / "model.onnx"), 1).against(graph.path)


def test_a_file_that_cannot_be_run_is_a_sentence(tmp_path: Path) -> None:
    graph = plus_one(tmp_path / "model.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x08")
    with pytest.raises(StartError, match=r"broken\.onnx cannot be run: "):
        Comparison(graph, 1).against(tmp_path / "broken.onnx")
