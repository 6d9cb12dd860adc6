"""Small real models of the tasks: graphs with fixed weights, and files of Hugging Face's form beside them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from sm.client.base import Client, TensorClient
from sm.plugins.checks import check
from sm.plugins.loading import load
from sm.plugins.sources import ClientSource
from sm.settings import HERE
from tests.support.onnx_graphs import write_graph
from trireme_extensions.convert.graph_runner import session
from trireme_extensions.convert.onnx_graph import Graph
from trireme_tools.build.samples import InProcess
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


#: For each task, its outputs for some labels, and how they are made of the tokens' vectors.
TEXT_GRAPHS = {
    "sentence-embeddings": ("float[b,s,6] last_hidden_state", "last_hidden_state = Identity(hidden)"),
    "fill-mask": ("float[b,s,16] logits", "logits = MatMul(hidden, words)"),
    "question-answering": (
        "float[b,s] start_logits, float[b,s] end_logits",
        "start_logits = MatMul(hidden, w0) end_logits = MatMul(hidden, w1)",
    ),
    "token-classification": ("float[b,s,LABELS] logits", "logits = MatMul(hidden, layer)"),
    # The mean of the tokens that the attention counts.
    "text-classification": (
        "float[b,LABELS] logits",
        """mask = Cast<to = 1>(attention_mask)
        wide = Unsqueeze(mask, last)
        masked = Mul(hidden, wide)
        sum = ReduceSum<keepdims = 0>(masked, one)
        number = ReduceSum<keepdims = 0>(wide, one)
        pooled = Div(sum, number)
        logits = MatMul(pooled, layer)""",
    ),
}


def write_text_model(folder: Path, task: str, labels: tuple[str, ...] = ()) -> Path:
    """Write the graph of a task, its tokenizer and its configuration; return the graph's file."""
    write_tokenizer(folder)
    taken, body = TEXT_GRAPHS[task]
    given = "int64[b,s] input_ids" + (", int64[b,s] attention_mask" if "attention_mask" in body else "")
    weights: dict[str, NDArray[Any]] = {
        "table": TABLE,
        "words": np.ascontiguousarray(TABLE.T),
        "layer": LAYER[:, : len(labels)],
        "w0": LAYER[:, 0],
        "w1": LAYER[:, 1],
        "last": np.array([-1]),
        "one": np.array([1]),
    }
    text = f"({given}) => ({taken}) {{ hidden = Gather(table, input_ids) {body} }}"
    write_graph(folder / "model.onnx", text.replace("LABELS", str(len(labels))), weights=weights)
    config = {"model_type": "bert", "id2label": {str(index): label for index, label in enumerate(labels)}}
    (folder / "config.json").write_text(json.dumps(config))
    if labels:
        (folder / "labels.txt").write_text("\n".join(labels))
    return folder / "model.onnx"


def write_segmenter(folder: Path, labels: tuple[str, ...]) -> None:
    """Write a graph with a score for each class and block of 2 by 2 pixels: the mean of a channel."""
    pool = "logits = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(pixel_values)"
    write_graph(
        folder / "model.onnx", f"(float[b,3,8,8] pixel_values) => (float[b,3,4,4] logits) {{ {pool} }}"
    )
    describe_pictures(folder, labels, resize=8, crop=8, fit="squash")


def write_constants(folder: Path, picture: str, outputs: dict[str, NDArray[np.float32]]) -> None:
    """Write a graph that gives the same outputs for every picture of 8 by 8 pixels."""
    taken = ", ".join(f"float[1,{','.join(map(str, rows.shape))}] {name}" for name, rows in outputs.items())
    body = " ".join(f"{name} = Add(none, {name}_rows)" for name in outputs)
    text = f"""(float[1,3,8,8] {picture}) => ({taken}) {{
        sum = ReduceSum<keepdims = 0>({picture})
        none = Mul(sum, zero)
        {body}
    }}"""
    weights = {f"{name}_rows": rows[None] for name, rows in outputs.items()}
    write_graph(folder / "model.onnx", text, weights={"zero": np.array(0, np.float32), **weights})


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
    client = load_task_client(folder, in_process(folder / "model.onnx"), options)
    assert isinstance(client, TensorClient)
    return client


def ask(client: Client, **payload: Any) -> Any:
    """Answer a record with these members."""
    return client.inference(client.payload.model_validate(payload))


def load_task_client(folder: Path, triton: InProcess, task: dict[str, Any]) -> Client:
    (folder / "task.json").write_text(json.dumps(task))
    return load_client(ClientSource(folder.name, folder / "task.json", "task"), triton, folder.parent)


def load_client(source: ClientSource, triton: InProcess, repository: Path) -> Client:
    """Load and check a client as the box does."""
    client = load(source, triton, repository)
    check(client, source, triton)
    return client


def load_built_in(name: str, triton: InProcess, repository: Path) -> Client:
    """Load a client of this checkout's ``clients``."""
    return load_client(ClientSource(name, HERE / "clients" / name / "client.py"), triton, repository)


def in_process(file: Path, beside: dict[str, InProcess] | None = None) -> InProcess:
    """Run a graph in this process; tests/integration runs such models in a real Triton."""
    return InProcess(Graph.read(file), session(file), beside)


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
    is_speech = "<pad>" in classes
    last = (
        "Transpose<perm = [0, 2, 1]>(scores)" if is_speech else "ReduceMean<axes = [2], keepdims = 0>(scores)"
    )
    text = f"""(float[b,n] input_values) => (float[b,{"f," if is_speech else ""}{len(classes)}] logits) {{
        channel = Unsqueeze(input_values, one)
        heard = Conv<strides = [320]>(channel, waves)
        squares = Mul(heard, heard)
        scores = Conv(squares, sums, bias)
        logits = {last}
    }}"""
    write_graph(
        folder / "model.onnx",
        text,
        weights={"one": np.array([1]), "waves": waves, "sums": sums, "bias": bias},
    )
    name = "Wav2Vec2ForCTC" if is_speech else "Wav2Vec2ForSequenceClassification"
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
    states = f"float[b,s,{len(words)}]"
    gather = "last_hidden_state = Gather(table, input_ids)"
    text = f"(int64[b,s] input_ids) => ({states} last_hidden_state) {{ {gather} }}"
    write_graph(folder / "encoder_model.onnx", text, weights={"table": table})
    text = f"""(int64[b,s] encoder_attention_mask, int64[b,t] input_ids, {states} encoder_hidden_states)
        => (float[b,t,{len(words)}] logits) {{
        mask = Cast<to = 1>(encoder_attention_mask)
        wide = Unsqueeze(mask, two)
        read = Mul(encoder_hidden_states, wide)
        place = Shape<start = 1>(input_ids)
        logits = Slice(read, zero, place, one)
    }}"""
    numbers = {name: np.array([number]) for number, name in enumerate(("zero", "one", "two"))}
    write_graph(folder / "decoder_model.onnx", text, weights=numbers)
    config = {"architectures": ["T5ForConditionalGeneration"], "decoder_start_token_id": 0}
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": words.index("</s>")}))
    return folder


def load_translator(folder: Path, **options: object) -> Client:
    """Load the client that serves a folder of :func:`write_translator`."""
    decoder = in_process(folder / "decoder_model.onnx")
    triton = in_process(folder / "encoder_model.onnx", {f"{folder.name}_decoder": decoder})
    return load_task_client(folder, triton, {"task": "text2text-generation", "end": [5], **options})
