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

from sm.build.graph_runner import session
from sm.build.onnx_graph import Graph
from sm.build.samples import InProcess
from sm.client.base import Client, TensorClient
from sm.plugins.checks import check
from sm.plugins.loading import ClientSource, load
from tests.support.onnx_graphs import save_graph
from trireme_tools.scaffold.arguments import add_model_arguments
from trireme_tools.scaffold.new_model import run

WORDS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *("ada", "lives", "in", "paris", "where", "does", "she", "##s", "live", "?", "."),
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
                numpy_helper.from_array(np.array([at]), name) for name, at in (("last", -1), ("one", 1))
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


def write_segmenter(folder: Path, labels: tuple[str, ...]) -> None:
    """Write a graph with a score for each class and block of 2 by 2 pixels: the mean of a channel."""
    pool = helper.make_node("AveragePool", ["pixel_values"], ["logits"], kernel_shape=[2, 2], strides=[2, 2])
    given = {"pixel_values": (TensorProto.FLOAT, ["b", 3, 8, 8])}
    save_graph(folder / "model.onnx", [pool], given, {"logits": (TensorProto.FLOAT, ["b", 3, 4, 4])})
    describe_pictures(folder, labels, resize=8, crop=8, fit="squash")


def write_constants(folder: Path, picture: str, outputs: dict[str, NDArray[np.float32]]) -> None:
    """Write a graph that gives the same outputs for every picture of 8 by 8 pixels."""
    nodes = [
        helper.make_node("ReduceSum", [picture], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "zero"], ["none"]),
        *(helper.make_node("Add", ["none", f"{name}_rows"], [name]) for name in outputs),
    ]
    weights = {
        "zero": np.array(0, np.float32),
        **{f"{name}_rows": each[None] for name, each in outputs.items()},
    }
    save_graph(
        folder / "model.onnx",
        nodes,
        {picture: (TensorProto.FLOAT, [1, 3, 8, 8])},
        {name: (TensorProto.FLOAT, [1, *each.shape]) for name, each in outputs.items()},
        tuple(numpy_helper.from_array(each, name) for name, each in weights.items()),
    )


def describe_pictures(folder: Path, labels: tuple[str, ...], **steps: object) -> None:
    """Write the labels of a model, and how its pictures are prepared."""
    (folder / "labels.txt").write_text("\n".join(labels))
    (folder / "preprocess.json").write_text(json.dumps({"channels": "RGB", "scale": 1 / 255, **steps}))


def new_model(name: str, into: Path, source: Path, *options: object) -> Path:
    """Run ``sm new-model``; return the model's folder."""
    parser = argparse.ArgumentParser()
    add_model_arguments(parser)
    run(parser.parse_args([name, "--into", str(into), "--from", str(source), *map(str, options)]))
    return into / "model" / name


def load_task(folder: Path, **options: Any) -> TensorClient:
    """Write ``task.json`` into a model's folder, and load the client that serves it, with its graph."""
    graph = Graph.read(folder / "model.onnx")
    client = load_client(folder, InProcess(graph, session(graph.path)), options)
    assert isinstance(client, TensorClient)
    return client


def load_client(folder: Path, triton: InProcess, task: dict[str, Any]) -> Client:
    (folder / "task.json").write_text(json.dumps(task))
    source = ClientSource(folder.name, folder / "task.json")
    client = load(source, triton, folder.parent)
    check(client, source, triton)
    return client


#: The pitch of each letter of :func:`tones`, in Hz; ``|`` is between words.
PITCHES = {"|": 400, "a": 800, "b": 1200, "c": 1600}
VOCABULARY = ("<pad>", "<s>", "</s>", "<unk>", *PITCHES)


def tones(text: str, rate: int = 16_000) -> NDArray[np.float32]:
    """Say a text with a tone of 0.1 s for each letter, and as much silence behind it."""
    time = np.arange(rate // 10) / rate
    letters = text.replace(" ", "|")
    parts = [part for letter in letters for part in (np.sin(2 * np.pi * PITCHES[letter] * time), 0 * time)]
    samples: NDArray[np.float32] = np.concatenate(parts).astype(np.float32)
    return samples


def write_sound_model(folder: Path, task: str) -> Path:
    """Write a graph that hears :func:`tones`, and files as ``save_pretrained()`` writes them for Wav2Vec2.

    A frame of 25 ms is compared with the sine and the cosine of each pitch; the squares are the scores.
    """
    angles = 2 * np.pi * np.outer(list(PITCHES.values()), np.arange(400)) / 16_000
    waves = np.concatenate([np.sin(angles), np.cos(angles)])[:, None].astype(np.float32) / 100
    count, classes = len(PITCHES), VOCABULARY if task == "automatic-speech-recognition" else (*PITCHES,)
    sums = np.zeros((len(classes), 2 * count, 1), np.float32)
    for column, letter in enumerate(PITCHES):
        sums[classes.index(letter), [column, column + count]] = 1
    bias = np.where([name == "<pad>" for name in classes], 1, 0).astype(np.float32)
    weights = [
        numpy_helper.from_array(array, name)
        for name, array in (("one", np.array([1])), ("waves", waves), ("sums", sums), ("bias", bias))
    ]
    nodes = [
        helper.make_node("Unsqueeze", ["input_values", "one"], ["channel"]),
        helper.make_node("Conv", ["channel", "waves"], ["heard"], strides=[320]),
        helper.make_node("Mul", ["heard", "heard"], ["squares"]),
        helper.make_node("Conv", ["squares", "sums", "bias"], ["scores"]),
        helper.make_node("Transpose", ["scores"], ["logits"], perm=[0, 2, 1])
        if "<pad>" in classes
        else helper.make_node("ReduceMean", ["scores"], ["logits"], axes=[2], keepdims=0),
    ]
    frames = ["f"] if "<pad>" in classes else []
    folder.mkdir(parents=True, exist_ok=True)
    save_graph(
        folder / "model.onnx",
        nodes,
        {"input_values": (TensorProto.FLOAT, ["b", "n"])},
        {"logits": (TensorProto.FLOAT, ["b", *frames, len(classes)])},
        tuple(weights),
    )
    name = "Wav2Vec2ForCTC" if "<pad>" in classes else "Wav2Vec2ForSequenceClassification"
    files = {
        "config": {"architectures": [name], "id2label": dict(enumerate(classes))},
        "preprocessor_config": {"sampling_rate": 16_000, "do_normalize": True, "feature_size": 1},
        "tokenizer_config": {"pad_token": "<pad>", "word_delimiter_token": "|"},
        "vocab": {token: index for index, token in enumerate(VOCABULARY)},
    }
    for file, content in files.items():
        (folder / f"{file}.json").write_text(json.dumps(content))
    return folder


#: A word of the source, and of the translation, each with a token of its own; the last ends both.
TRANSLATIONS = {"ada": "ada", "lives": "wohnt", "in": "in", "paris": "paris", "</s>": "</s>"}


def write_translator(folder: Path) -> Path:
    """Write an encoder and a decoder as optimum exports them, which translate word for word.

    A token's hidden state says its translation; the decoder reads the state at its own place.
    """
    words = list(dict.fromkeys(("<pad>", *TRANSLATIONS, *TRANSLATIONS.values())))
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, "<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "$A </s>", "$A $B </s>", [("</s>", words.index("</s>"))]
    )
    tokenizer.add_special_tokens(["<pad>", "</s>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    rows = [words.index(TRANSLATIONS.get(word, "<pad>")) for word in words]
    table = 9 * np.eye(len(words), dtype=np.float32)[rows]
    sizes: Any = ["b", "s"]
    mask = (TensorProto.INT64, sizes)
    save_graph(
        folder / "encoder_model.onnx",
        [helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])],
        {"input_ids": mask},
        {"last_hidden_state": (TensorProto.FLOAT, [*sizes, len(words)])},
        (numpy_helper.from_array(table, "table"),),
    )
    numbers = {"zero": [0], "one": [1], "two": [2]}
    nodes = [
        helper.make_node("Cast", ["encoder_attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "two"], ["wide"]),
        helper.make_node("Mul", ["encoder_hidden_states", "wide"], ["read"]),
        helper.make_node("Shape", ["input_ids"], ["place"], start=1),
        helper.make_node("Slice", ["read", "zero", "place", "one"], ["logits"]),
    ]
    save_graph(
        folder / "decoder_model.onnx",
        nodes,
        {
            "encoder_attention_mask": mask,
            "input_ids": (TensorProto.INT64, ["b", "t"]),
            "encoder_hidden_states": (TensorProto.FLOAT, [*sizes, len(words)]),
        },
        {"logits": (TensorProto.FLOAT, ["b", "t", len(words)])},
        tuple(numpy_helper.from_array(np.array(value), name) for name, value in numbers.items()),
    )
    config = {"architectures": ["T5ForConditionalGeneration"], "decoder_start_token_id": 0}
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": words.index("</s>")}))
    return folder


def load_translator(folder: Path, **options: object) -> Client:
    """Load the client that serves a folder of :func:`write_translator`."""
    graphs = {name: Graph.read(folder / f"{name}_model.onnx") for name in ("encoder", "decoder")}
    runs = {name: InProcess(graph, session(graph.path)) for name, graph in graphs.items()}
    beside = {f"{folder.name}_decoder": runs["decoder"]}
    triton = InProcess(graphs["encoder"], runs["encoder"].runner, beside)
    return load_client(folder, triton, {"task": "text2text-generation", "end": [5], **options})
