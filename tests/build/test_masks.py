"""The logits of the masks alone: on ONNX Runtime the same numbers as those of all words, row for row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sm.build import masks
from sm.build.accuracy import session
from sm.build.changes import Changes
from sm.build.graph import Graph
from sm.errors import StartError
from tests.build.graphs import saved, words

MASK = 7


def language_model(path: Path, opset: int = 17) -> Graph:
    """input_ids [b, s] to logits [b, s, 5]: a table of 10 words, a matrix, a bias."""
    generator = np.random.default_rng(0)

    def weight(name: str, *sizes: int) -> onnx.TensorProto:
        values = generator.standard_normal(sizes).astype(np.float32)
        return helper.make_tensor(name, TensorProto.FLOAT, sizes, values.ravel())

    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "matrix"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["logits"]),
    ]
    given = {"input_ids": (TensorProto.INT64, ["b", "s"])}
    taken = {"logits": (TensorProto.FLOAT, ["b", "s", 5])}
    weights = (weight("table", 10, 3), weight("matrix", 3, 5), weight("bias", 5))
    saved(path, nodes, given, taken, weights)
    model = onnx.load(path)
    model.opset_import[0].version = opset
    onnx.save(model, path)
    return Graph.read(path)


@pytest.mark.parametrize("opset", [11, 17, 18])
def test_the_masks_rows_are_those_of_all_words_in_their_order(tmp_path: Path, opset: int) -> None:
    graph = language_model(tmp_path / "m.onnx", opset)
    made = masks.added(graph, MASK, tmp_path / "masks.onnx")
    assert [(value.name, value.shape) for value in made.outputs] == [("mask_logits", (-1, -1, 5))]
    # Built again it stays as it is, and needs no tokenizer.
    (tmp_path / "preprocess.json").touch()
    graphs = Changes(masks=True).graphs(made, tmp_path / "preprocess.json", tmp_path)
    assert (graphs.served, graphs.made) == (made, Changes())
    ids = np.array([[1, MASK, 2, MASK], [MASK, 3, 4, 5], [1, 2, 3, 4]])
    (every,) = session(graph.path).run(["logits"], {"input_ids": ids})
    (found,) = session(made.path).run(["mask_logits"], {"input_ids": ids})
    assert found.shape == (3, 2, 5)
    np.testing.assert_array_equal(found[0], every[0, [1, 3]])
    np.testing.assert_array_equal(found[1, 0], every[1, 0])


def test_a_batch_without_a_mask_is_answered_too(tmp_path: Path) -> None:
    made = masks.added(language_model(tmp_path / "m.onnx"), MASK, tmp_path / "masks.onnx")
    (found,) = session(made.path).run(["mask_logits"], {"input_ids": np.array([[1, 2]])})
    assert found.shape == (1, 1, 5)


def test_another_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="does not end as a masked language model"):
        masks.added(words(tmp_path / "m.onnx"), MASK, tmp_path / "masks.onnx")


def test_files_that_name_no_mask_are_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "preprocess.json").write_text('{"mask_token": "[MASK]"}')
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [{"id": 0, "content": "[PAD]"}]}')
    with pytest.raises(StartError, match="do not say what the mask is"):
        masks.mask(tmp_path / "preprocess.json", tmp_path / "tokenizer.json")
