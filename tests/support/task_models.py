"""Small real models of the tasks: graphs with fixed weights, and files of Hugging Face's form beside them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from sm.client.base import TensorClient
from sm.commands.build.graph_runner import session
from sm.commands.build.onnx_graph import Graph
from sm.commands.build.samples import InProcess
from sm.plugins.loading import ClientSource, load
from sm.plugins.registry import check
from tests.support.onnx_graphs import save_graph
from trireme_tools.scaffold.arguments import add_model_arguments
from trireme_tools.scaffold.new_model import run

WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *["ada", "lives", "in", "paris", "where", "does", "she", "##s", "live", "?", "."],
)
VECTOR = 6
#: Weights of the embedding, and of the layer behind it.
TABLE: NDArray[np.float32] = np.random.default_rng(0).standard_normal((len(WORDS), VECTOR)).astype(np.float32)
LAYER: NDArray[np.float32] = np.random.default_rng(1).standard_normal((VECTOR, 5)).astype(np.float32) * 2


def write_tokenizer(folder: Path) -> None:
    """Write ``tokenizer.json`` of a small BERT, as ``save_pretrained()`` does."""
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(list(WORDS[:5]))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_text_model(folder: Path, task: str, labels: tuple[str, ...] = ()) -> Path:
    """Write the graph of a task, its tokenizer and its configuration; return the graph's file."""
    write_tokenizer(folder)
    count = len(labels)
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["hidden"])]
    weights = [numpy_helper.from_array(TABLE, "table")]
    tokens: Any = ["b", "s"]
    outputs: dict[str, Any] = {}
    if task == "sentence-embeddings":
        nodes.append(helper.make_node("Identity", ["hidden"], ["last_hidden_state"]))
        outputs["last_hidden_state"] = (TensorProto.FLOAT, [*tokens, VECTOR])
    elif task == "fill-mask":
        weights.append(numpy_helper.from_array(np.ascontiguousarray(TABLE.T), "words"))
        nodes.append(helper.make_node("MatMul", ["hidden", "words"], ["logits"]))
        outputs["logits"] = (TensorProto.FLOAT, [*tokens, len(WORDS)])
    elif task == "question-answering":
        for column, name in enumerate(("start_logits", "end_logits")):
            weights.append(numpy_helper.from_array(LAYER[:, column], f"w{column}"))
            nodes.append(helper.make_node("MatMul", ["hidden", f"w{column}"], [name]))
            outputs[name] = (TensorProto.FLOAT, tokens)
    else:
        pooled, sizes = "hidden", [*tokens, count]
        if task == "text-classification":
            pooled, sizes = "pooled", ["b", count]
            # The mean of the tokens that the attention counts.
            nodes += [
                helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
                helper.make_node("Unsqueeze", ["mask", "last"], ["wide"]),
                helper.make_node("Mul", ["hidden", "wide"], ["masked"]),
                helper.make_node("ReduceSum", ["masked", "one"], ["sum"], keepdims=0),
                helper.make_node("ReduceSum", ["wide", "one"], ["number"], keepdims=0),
                helper.make_node("Div", ["sum", "number"], ["pooled"]),
            ]
            weights += [
                numpy_helper.from_array(np.array([-1]), "last"),
                numpy_helper.from_array(np.array([1]), "one"),
            ]
        weights.append(numpy_helper.from_array(LAYER[:, :count], "layer"))
        nodes.append(helper.make_node("MatMul", [pooled, "layer"], ["logits"]))
        outputs["logits"] = (TensorProto.FLOAT, sizes)
    inputs = {"input_ids": (TensorProto.INT64, tokens)}
    if task == "text-classification":
        inputs["attention_mask"] = (TensorProto.INT64, tokens)
    save_graph(folder / "model.onnx", nodes, inputs, outputs, tuple(weights))
    config = {"model_type": "bert", "id2label": {str(index): label for index, label in enumerate(labels)}}
    (folder / "config.json").write_text(json.dumps(config))
    if labels:
        (folder / "labels.txt").write_text("\n".join(labels))
    return folder / "model.onnx"


def new_model(name: str, into: Path, source: Path, *options: object) -> Path:
    """Run ``sm new-model``; return the model's folder."""
    parser = argparse.ArgumentParser()
    add_model_arguments(parser)
    run(parser.parse_args([name, "--into", str(into), "--from", str(source), *map(str, options)]))
    return into / "model" / name


def load_task(folder: Path, **options: Any) -> TensorClient:
    """Write ``task.json`` into a model's folder, and load the client that serves it, with its graph."""
    (folder / "task.json").write_text(json.dumps(options))
    graph = Graph.read(folder / "model.onnx")
    triton = InProcess(graph, session(graph.path))
    source = ClientSource(folder.name, folder / "task.json")
    client = load(source, triton, folder.parent)
    check(client, source, triton)
    assert isinstance(client, TensorClient)
    return client
