"""The best words of the masks alone: on ONNX Runtime those that the client finds among all words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from clients.bert_base import client
from clients.bert_base.client import Options
from clients.bert_base.filling import top_words
from sm.errors import StartError
from sm.tools.build import masks
from sm.tools.build.changes import Changes
from sm.tools.build.graph_runner import session
from sm.tools.build.onnx_graph import Graph
from tests.support.onnx_graphs import saved, words

VOCABULARY = masks.Vocabulary(mask=7, reserved=(1, 7))
MASK = VOCABULARY.mask


def language_model(path: Path, opset: int = 17) -> Graph:
    """input_ids [b, s] to logits [b, s, 300]: a table of 300 words, a matrix, a bias; 8 and 9 are equals."""
    generator = np.random.default_rng(0)

    def weight(name: str, *sizes: int) -> onnx.TensorProto:
        values = generator.standard_normal(sizes).astype(np.float32)
        values[..., 9] = values[..., 8]
        return helper.make_tensor(name, TensorProto.FLOAT, sizes, values.ravel())

    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "matrix"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["logits"]),
    ]
    given = {"input_ids": (TensorProto.INT64, ["b", "s"])}
    taken = {"logits": (TensorProto.FLOAT, ["b", "s", 300])}
    weights = (weight("table", 300, 12), weight("matrix", 12, 300), weight("bias", 300))
    saved(path, nodes, given, taken, weights)
    model = onnx.load(path)
    model.opset_import[0].version = opset
    onnx.save(model, path)
    return Graph.read(path)


@pytest.mark.parametrize("opset", [11, 17, 18])
def test_the_words_are_those_that_the_client_finds_among_all(tmp_path: Path, opset: int) -> None:
    graph = language_model(tmp_path / "m.onnx", opset)
    made = masks.add_mask_outputs(graph, VOCABULARY, tmp_path / "masks.onnx")
    assert [(value.name, value.datatype, value.shape) for value in made.outputs] == [
        ("word_ids", "TYPE_INT64", (-1, -1, masks.WORDS)),
        ("word_scores", "TYPE_FP32", (-1, -1, masks.WORDS)),
    ]
    # Built again it stays as it is, and needs no tokenizer.
    (tmp_path / "preprocess.json").touch()
    graphs = Changes(masks=True).graphs(made, tmp_path / "preprocess.json", tmp_path)
    assert (graphs.served, graphs.applied) == (made, Changes())
    ids = np.array([[2, MASK, 3, MASK], [MASK, 4, 5, 6], [2, 3, 4, 5]])
    (every,) = session(graph.path).run(["logits"], {"input_ids": ids})
    words, scores = session(made.path).run(["word_ids", "word_scores"], {"input_ids": ids})
    assert words.shape == scores.shape == (3, 2, masks.WORDS)
    for record, row, place in ((0, 0, 1), (0, 1, 3), (1, 0, 0)):
        best, known = top_words(every[record, place], np.array(VOCABULARY.reserved), masks.WORDS)
        np.testing.assert_array_equal(words[record, row], best)
        np.testing.assert_allclose(scores[record, row], known, rtol=1e-6)


def test_a_text_without_a_mask_and_a_vocabulary_of_few_words_are_answered_too(tmp_path: Path) -> None:
    few = masks.Vocabulary(mask=7, reserved=tuple(range(260)))
    made = masks.add_mask_outputs(language_model(tmp_path / "m.onnx"), few, tmp_path / "masks.onnx")
    (found,) = session(made.path).run(["word_ids"], {"input_ids": np.array([[1, 2]])})
    assert sorted(found[0, 0].tolist()) == list(range(260, 300))


def test_what_is_never_an_answer_is_what_the_client_bars() -> None:
    assert masks.RESERVED == client.RESERVED
    assert Options.model_json_schema()["properties"]["top"]["maximum"] == masks.WORDS


def test_another_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="does not end as a masked language model"):
        masks.add_mask_outputs(words(tmp_path / "m.onnx"), VOCABULARY, tmp_path / "masks.onnx")


def test_files_that_name_no_mask_are_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "preprocess.json").write_text('{"mask_token": "[MASK]"}')
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}, "added_tokens": []}')
    with pytest.raises(StartError, match="do not say what the mask is"):
        masks.Vocabulary.read(tmp_path / "preprocess.json", tmp_path / "tokenizer.json")
