"""A graph with mask outputs returns the same best words for each mask as the client finds among all words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sm.client.fill_mask import top_words
from sm.errors import CommandError
from tests.support.onnx_graphs import write_graph
from trireme_extensions.convert.graph_runner import session
from trireme_extensions.convert.onnx_graph import Graph
from trireme_tools.build import masks
from trireme_tools.build.changes import GraphChanges

VOCABULARY = masks.Vocabulary(mask=7, reserved=(1, 7))
MASK = VOCABULARY.mask


def write_language_model(path: Path, opset: int = 17) -> Graph:
    """Write a graph from input_ids [b, s] to logits [b, s, 300]; words 8 and 9 always have equal scores."""
    generator = np.random.default_rng(0)

    def weight(name: str, *sizes: int) -> onnx.TensorProto:
        values = generator.standard_normal(sizes).astype(np.float32)
        values[..., 9] = values[..., 8]
        return helper.make_tensor(name, TensorProto.FLOAT, sizes, values.ravel())

    text = """(int64[b,s] input_ids) => (float[b,s,300] logits)
        { hidden = Gather(table, input_ids) product = MatMul(hidden, matrix) logits = Add(product, bias) }"""
    model = onnx.load(write_graph(path, text, opset=opset).path)
    model.graph.initializer.extend([weight("table", 300, 12), weight("matrix", 12, 300), weight("bias", 300)])
    onnx.save(model, path)
    return Graph.read(path)


@pytest.mark.parametrize("opset", [11, 17, 18])
def test_the_mask_outputs_are_the_words_that_the_client_finds(tmp_path: Path, opset: int) -> None:
    graph = write_language_model(tmp_path / "m.onnx", opset)
    masked_graph = masks.add_mask_outputs(graph, VOCABULARY, tmp_path / "masks.onnx")
    assert [(value.name, value.datatype, value.shape) for value in masked_graph.outputs] == [
        ("word_ids", "TYPE_INT64", (-1, -1, masks.WORDS)),
        ("word_scores", "TYPE_FP32", (-1, -1, masks.WORDS)),
    ]
    # Building it again changes nothing, and needs no tokenizer.
    (tmp_path / "preprocess.json").touch()
    graphs = GraphChanges(masks=True).graphs(masked_graph, tmp_path / "preprocess.json", tmp_path)
    assert (graphs.served, graphs.applied) == (masked_graph, ())
    ids = np.array([[2, MASK, 3, MASK], [MASK, 4, 5, 6], [2, 3, 4, 5]])
    (logits,) = session(graph.path).run(["logits"], {"input_ids": ids})
    words, scores = session(masked_graph.path).run(["word_ids", "word_scores"], {"input_ids": ids})
    assert words.shape == scores.shape == (3, 2, masks.WORDS)
    for record, mask, position in ((0, 0, 1), (0, 1, 3), (1, 0, 0)):
        expected_words, expected_scores = top_words(
            logits[record, position], np.array(VOCABULARY.reserved), masks.WORDS
        )
        np.testing.assert_array_equal(words[record, mask], expected_words)
        np.testing.assert_allclose(scores[record, mask], expected_scores, rtol=1e-6)


def test_a_tokenizer_without_a_mask_is_refused_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "preprocess.json").write_text('{"mask_token": "[MASK]"}')
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}, "added_tokens": []}')
    with pytest.raises(CommandError, match="tokenizer.json"):
        masks.Vocabulary.read(tmp_path / "preprocess.json", tmp_path / "tokenizer.json")
