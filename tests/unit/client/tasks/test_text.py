"""Tasks of texts: embeddings, padding, limits and what stops the start. The other answers: ``test_pipelines.py``."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from sm.errors import StartError, WrongPayload
from tests.support.task_models import TABLE, VECTOR, WORDS, ask, load_task, write_text_model

TEXT = "Ada lives in Paris."
TOKENS = ["[CLS]", "ada", "lives", "in", "paris", ".", "[SEP]"]
IDS = [WORDS.index(word) for word in TOKENS]
HIDDEN = TABLE[IDS]
MOODS = ("sad", "glad")


def load_mood(folder: Path, **options: Any) -> Any:
    write_text_model(folder, "text-classification", MOODS)
    return load_task(folder, task="text-classification", **options)


@pytest.mark.parametrize("name", ["labels.txt", "tokenizer.json", "task.json"])
def test_a_file_with_a_byte_order_mark_is_read_as_without(tmp_path: Path, name: str) -> None:
    client = load_mood(tmp_path / "mood")
    plain = ask(client, text=TEXT)
    file = tmp_path / "mood" / name
    file.write_bytes(BOM_UTF8 + file.read_bytes())
    client.setup()
    assert ask(client, text=TEXT) == plain


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("normalise", [True, False])
def test_an_embedding_is_pooled_and_normalised(tmp_path: Path, pooling: str, normalise: bool) -> None:
    write_text_model(tmp_path / "model", "sentence-embeddings")
    client = load_task(tmp_path / "model", task="sentence-embeddings", pooling=pooling, normalise=normalise)
    expected = {"mean": HIDDEN.mean(axis=0), "cls": HIDDEN[0], "last": HIDDEN[-1]}[pooling]
    if normalise:
        expected = expected / np.linalg.norm(expected)
    answer = ask(client, text=TEXT)
    assert (answer["tokens"], len(answer["embedding"])) == (len(TOKENS), VECTOR)
    # A longer text beside it pads it, which changes nothing.
    payloads = [client.payload.model_validate({"text": text}) for text in (TEXT, f"{TEXT} {TEXT}")]
    padded: Any = client.inference_batch(payloads)[0]
    for same in (answer, ask(client, token_ids=IDS), padded):
        np.testing.assert_allclose(same["embedding"], expected, atol=1e-6)


def test_a_token_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    write_text_model(tmp_path / "sentences", "sentence-embeddings")
    with pytest.raises(WrongPayload, match="99"):
        ask(load_task(tmp_path / "sentences", task="sentence-embeddings"), token_ids=[2, 99, 3])


def test_a_text_that_is_too_long_is_refused_or_truncated(tmp_path: Path) -> None:
    with pytest.raises(WrongPayload):
        ask(load_mood(tmp_path / "mood", max_length=5), text=TEXT)
    short = load_mood(tmp_path / "mood", max_length=5, truncate=True)
    assert ask(short, text=TEXT) == ask(short, text="ada lives in")


@pytest.mark.parametrize(
    ("task", "file", "content", "named"),
    [
        ({"task": "text-classification"}, "labels.txt", "one\ntwo\nthree", "labels"),
        ({"task": "text-classification"}, "tokenizer.json", None, r"tokenizer\.json"),
        ({"task": "text-classification"}, "tokenizer.json", "{}", r"tokenizer\.json"),
        ({"task": "poetry"}, "", None, "poetry"),
        ({"task": "token-classification"}, "", None, "dimensions"),
        ({"task": "question-answering"}, "", None, "start_logits"),
        ({"task": "text-classification", "colour": 1}, "", None, "colour"),
        ({"task": "zero-shot-classification"}, "", None, "entail"),
    ],
)
def test_a_model_that_cannot_do_its_task_stops_the_start(
    tmp_path: Path, task: dict[str, Any], file: str, content: str | None, named: str
) -> None:
    write_text_model(tmp_path, "text-classification", MOODS)
    if content:
        (tmp_path / file).write_text(content)
    elif file:
        (tmp_path / file).unlink()
    with pytest.raises(StartError, match=named):
        load_task(tmp_path, **task)


def test_a_tokenizer_without_the_mask_cannot_fill_it(tmp_path: Path) -> None:
    write_text_model(tmp_path / "words", "fill-mask")
    with pytest.raises(StartError, match="<mask>"):
        load_task(tmp_path / "words", task="fill-mask", mask_token="<mask>")


@pytest.mark.parametrize(
    ("padding", "batches"),
    [({"pad_id": 0}, True), ({"pad_id": 0, "direction": "left"}, False), ({}, True), (None, False)],
)
def test_texts_wait_for_each_other_only_where_padding_changes_nothing(
    tmp_path: Path, padding: dict[str, Any] | None, batches: bool
) -> None:
    load_mood(tmp_path / "mood")
    file = tmp_path / "mood" / "tokenizer.json"
    if padding:
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.enable_padding(**padding)
        tokenizer.save(str(file))
    elif padding is None:  # no token is known to be padding
        file.write_text(file.read_text().replace("[PAD]", "[NONE]"))
    client: Any = load_task(tmp_path / "mood", task="text-classification")
    assert client.takes_batches() is batches
    if padding is not None:
        # Where a plan needs padding, it goes to its side, and is not read.
        client.min_length = 12
        inputs = client.preprocess(client.payload.model_validate({"text": TEXT}))
        own = slice(5, None) if padding.get("direction") == "left" else slice(len(TOKENS))
        assert inputs["input_ids"].shape == (12,)
        assert inputs["input_ids"][own].tolist() == IDS
        assert inputs["attention_mask"].sum() == inputs["attention_mask"][own].sum() == len(TOKENS)


def test_a_model_without_a_mask_reads_no_padding(tmp_path: Path) -> None:
    write_text_model(tmp_path / "sentences", "sentence-embeddings")
    assert not load_task(tmp_path / "sentences", task="sentence-embeddings").takes_batches()
