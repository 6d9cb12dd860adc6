"""Tasks of texts answer what plain NumPy computes from the same weights, alone and in a batch.

The pipelines of transformers need PyTorch, which is not installed here: the references are their formulas.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from sm.client.base import TensorClient
from sm.errors import StartError, WrongPayload
from tests.support.task_models import LAYER, TABLE, VECTOR, WORDS, load_task, write_text_model

TEXT = "Ada lives in Paris."
TOKENS = ["[CLS]", "ada", "lives", "in", "paris", ".", "[SEP]"]
HIDDEN = TABLE[[WORDS.index(word) for word in TOKENS]]


def softmax(values: NDArray[Any]) -> NDArray[Any]:
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    quotient: NDArray[Any] = powers / powers.sum(axis=-1, keepdims=True)
    return quotient


def ask(client: TensorClient, **payload: Any) -> Any:
    return client.inference(client.payload.model_validate(payload))


def test_text_classification_ranks_the_labels(tmp_path: Path) -> None:
    write_text_model(tmp_path / "mood", "text-classification", ("sad", "glad", "mad"))
    answer = ask(load_task(tmp_path / "mood", task="text-classification"), text=TEXT)
    expected = softmax(HIDDEN.mean(axis=0) @ LAYER[:, :3])
    assert [row["label"] for row in answer] == [("sad", "glad", "mad")[i] for i in np.argsort(-expected)]
    assert [row["score"] for row in answer] == pytest.approx(sorted(expected, reverse=True), abs=1e-6)


def test_several_labels_at_once_have_a_probability_each(tmp_path: Path) -> None:
    write_text_model(tmp_path / "mood", "text-classification", ("sad", "glad"))
    answer = ask(load_task(tmp_path / "mood", task="text-classification", activation="sigmoid"), text=TEXT)
    expected = 1 / (1 + np.exp(-(HIDDEN.mean(axis=0) @ LAYER[:, :2])))
    assert {row["label"]: row["score"] for row in answer} == pytest.approx(
        dict(zip(("sad", "glad"), expected, strict=True)), abs=1e-6
    )


def test_texts_of_different_lengths_answer_in_a_batch_what_they_answer_alone(tmp_path: Path) -> None:
    write_text_model(tmp_path / "mood", "text-classification", ("sad", "glad", "mad"))
    client = load_task(tmp_path / "mood", task="text-classification")
    records = [{"text": text} for text in ("ada", TEXT, "where does she live ?")]
    together = client.inference_batch([client.payload.model_validate(record) for record in records])
    for record, row in zip(records, together, strict=True):
        alone = ask(client, **record)
        assert [each["label"] for each in row] == [each["label"] for each in alone]  # type: ignore[attr-defined]


def test_a_span_is_cut_out_of_the_text_by_its_offsets(tmp_path: Path) -> None:
    labels = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    write_text_model(tmp_path / "names", "token-classification", labels)
    answer = ask(load_task(tmp_path / "names", task="token-classification"), text=TEXT)
    probabilities = softmax(HIDDEN @ LAYER)[1:-1]
    expected: list[tuple[str, list[float]]] = []
    for row in probabilities:
        label = labels[row.argmax()]
        kind = label.removeprefix("B-").removeprefix("I-")
        if expected and expected[-1][0] == kind and not label.startswith("B-"):
            expected[-1][1].append(row.max())
        else:
            expected.append((kind, [row.max()]))
    expected = [each for each in expected if each[0] != "O"]
    assert expected, "the weights find no span at all"
    assert [span["label"] for span in answer] == [kind for kind, _ in expected]
    assert [span["score"] for span in answer] == pytest.approx([np.mean(s) for _, s in expected], abs=1e-6)
    assert all(TEXT[span["start"] : span["end"]] == span["text"] for span in answer)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("normalise", [True, False])
def test_an_embedding_is_pooled_and_normalised(tmp_path: Path, pooling: str, normalise: bool) -> None:
    write_text_model(tmp_path / "sentences", "sentence-embeddings")
    client = load_task(
        tmp_path / "sentences", task="sentence-embeddings", pooling=pooling, normalise=normalise
    )
    expected = {"mean": HIDDEN.mean(axis=0), "cls": HIDDEN[0], "last": HIDDEN[-1]}[pooling]
    if normalise:
        expected = expected / np.linalg.norm(expected)
    answer = ask(client, text=TEXT)
    assert answer["tokens"] == len(TOKENS)
    np.testing.assert_allclose(answer["embedding"], expected, atol=1e-6)
    ids = [WORDS.index(word) for word in TOKENS]
    np.testing.assert_allclose(ask(client, token_ids=ids)["embedding"], expected, atol=1e-6)
    # A longer text beside it pads it, which changes nothing.
    payloads = [client.payload.model_validate({"text": text}) for text in (TEXT, f"{TEXT} {TEXT}")]
    first: Any = client.inference_batch(payloads)[0]
    np.testing.assert_allclose(first["embedding"], expected, atol=1e-6)
    assert len(first["embedding"]) == VECTOR


def test_a_text_is_padded_to_the_least_length_of_a_plan_which_changes_nothing(tmp_path: Path) -> None:
    write_text_model(tmp_path / "mood", "text-classification", ("sad", "glad"))
    client: Any = load_task(tmp_path / "mood", task="text-classification")
    unpadded = ask(client, text=TEXT)
    client.min_length = 12
    inputs = client.preprocess(client.payload.model_validate({"text": TEXT}))
    assert {array.shape for array in inputs.values()} == {(12,)}
    padded = ask(client, text=TEXT)
    assert [row["label"] for row in padded] == [row["label"] for row in unpadded]
    assert [row["score"] for row in padded] == pytest.approx([row["score"] for row in unpadded], abs=1e-6)


def test_a_token_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    write_text_model(tmp_path / "sentences", "sentence-embeddings")
    with pytest.raises(WrongPayload, match="99"):
        ask(load_task(tmp_path / "sentences", task="sentence-embeddings"), token_ids=[2, 99, 3])


def test_an_answer_is_the_likeliest_part_of_the_context(tmp_path: Path) -> None:
    write_text_model(tmp_path / "answers", "question-answering")
    client = load_task(tmp_path / "answers", task="question-answering")
    (answer,) = ask(client, question="Where does she live?", context=TEXT)
    words = ["[CLS]", "where", "does", "she", "live", "?", "[SEP]", *TOKENS[1:]]
    hidden = TABLE[[WORDS.index(word) for word in words]]
    counted = [0, *range(7, len(words) - 1)]  # what may be an answer, and the first token
    start, end = (softmax(hidden[counted] @ LAYER[:, column])[1:] for column in (0, 1))
    scores = np.triu(np.outer(start, end))
    first, last = np.unravel_index(scores.argmax(), scores.shape)
    begin = [0, 4, 10, 13, 18][first]
    finish = [3, 9, 12, 18, 19][last]
    assert answer == {
        "answer": TEXT[begin:finish],
        "score": pytest.approx(scores.max(), abs=1e-6),
        "start": begin,
        "end": finish,
    }


def test_a_text_that_is_too_long_is_refused_with_both_lengths_or_truncated(tmp_path: Path) -> None:
    write_text_model(tmp_path / "mood", "text-classification", ("sad", "glad"))
    with pytest.raises(WrongPayload):
        ask(load_task(tmp_path / "mood", task="text-classification", max_length=5), text=TEXT)
    short = load_task(tmp_path / "mood", task="text-classification", max_length=5, truncate=True)
    assert ask(short, text=TEXT) == ask(short, text="ada lives in")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"labels": "one\ntwo\nthree"}, "labels"),
        ({"tokenizer": None}, "tokenizer.json"),
        ({"tokenizer": "{}"}, "tokenizer.json"),
        ({"task": {"task": "poetry"}}, "poetry"),
        ({"task": {"task": "token-classification"}}, "2 dimensions"),
        ({"task": {"task": "question-answering"}}, "start_logits"),
        ({"task": {"task": "text-classification", "colour": 1}}, "colour"),
    ],
)
def test_a_model_that_cannot_do_its_task_stops_the_start(tmp_path: Path, changes: Any, named: str) -> None:
    folder = tmp_path / "mood"
    write_text_model(folder, "text-classification", ("sad", "glad"))
    if "labels" in changes:
        (folder / "labels.txt").write_text(changes["labels"])
    if changes.get("tokenizer", ""):
        (folder / "tokenizer.json").write_text(changes["tokenizer"])
    elif "tokenizer" in changes:
        (folder / "tokenizer.json").unlink()
    with pytest.raises(StartError) as raised:
        load_task(folder, **changes.get("task", {"task": "text-classification"}))
    assert named in str(raised.value)


NLI = ("contradiction", "neutral", "entailment")


def pooled(*words: str) -> Any:
    return TABLE[[WORDS.index(word) for word in ("[CLS]", *words, "[SEP]")]].mean(axis=0) @ LAYER[:, :3]


@pytest.mark.parametrize("several", [False, True])
def test_labels_of_the_request_are_scored_by_their_entailment(tmp_path: Path, several: bool) -> None:
    write_text_model(tmp_path / "topics", "text-classification", NLI)
    client = load_task(tmp_path / "topics", task="zero-shot-classification")
    labels = ["paris", "ada", "does"]
    answer = ask(
        client,
        text="she lives",
        labels=labels,
        parameters={"hypothesis": "in {}", "multi_label": several},
    )
    logits = np.array([pooled("she", "lives", "[SEP]", "in", label) for label in labels])
    expected = softmax(logits[:, [0, 2]])[:, 1] if several else softmax(logits[:, 2])
    assert [row["label"] for row in answer] == [labels[index] for index in np.argsort(-expected)]
    assert [row["score"] for row in answer] == pytest.approx(sorted(expected, reverse=True), abs=1e-6)


def test_a_model_without_entailment_cannot_score_new_labels(tmp_path: Path) -> None:
    write_text_model(tmp_path / "mood", "text-classification", ("sad", "glad"))
    with pytest.raises(StartError, match="entail"):
        load_task(tmp_path / "mood", task="zero-shot-classification")


def test_a_mask_is_filled_with_the_likeliest_words(tmp_path: Path) -> None:
    write_text_model(tmp_path / "words", "fill-mask")
    answer = ask(load_task(tmp_path / "words", task="fill-mask"), text="Ada [MASK] in Paris.")
    scores = TABLE[WORDS.index("[MASK]")] @ TABLE.T
    open_words = [index for index, word in enumerate(WORDS) if not word.startswith("[")]
    expected = softmax(scores[open_words])
    best = np.argsort(-expected)[:5]
    filled = [f"Ada {WORDS[open_words[index]]} in Paris.".replace(" ##", "") for index in best]
    assert [row["token"] for row in answer] == filled
    assert [row["score"] for row in answer] == pytest.approx(expected[best], abs=1e-6)


def test_a_tokenizer_without_the_mask_cannot_fill_it(tmp_path: Path) -> None:
    write_text_model(tmp_path / "words", "fill-mask")
    with pytest.raises(StartError, match="<mask>"):
        load_task(tmp_path / "words", task="fill-mask", mask_token="<mask>")


def test_one_label_has_a_probability_of_its_own(tmp_path: Path) -> None:
    write_text_model(tmp_path / "score", "text-classification", ("relevance",))
    logit = HIDDEN.mean(axis=0) @ LAYER[:, 0]
    (answer,) = ask(load_task(tmp_path / "score", task="text-classification"), text=TEXT)
    assert answer == {"label": "relevance", "score": pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-6)}
    (answer,) = ask(load_task(tmp_path / "score", task="text-classification", activation="none"), text=TEXT)
    assert answer["score"] == pytest.approx(logit, abs=1e-6)


@pytest.mark.parametrize("function", ["sigmoid", "softmax", "none"])
def test_a_request_chooses_what_makes_its_scores(tmp_path: Path, function: str) -> None:
    write_text_model(tmp_path / "mood", "text-classification", ("sad", "glad", "mad"))
    logits = HIDDEN.mean(axis=0) @ LAYER[:, :3]
    expected = {"sigmoid": 1 / (1 + np.exp(-logits)), "softmax": softmax(logits), "none": logits}[function]
    parameters = {"function_to_apply": function, "top_k": 2}
    answer = ask(load_task(tmp_path / "mood", task="text-classification"), text=TEXT, parameters=parameters)
    assert [row["score"] for row in answer] == pytest.approx(sorted(expected, reverse=True)[:2], abs=1e-6)


@pytest.mark.parametrize(
    ("padding", "batches"),
    [({"pad_id": 0}, True), ({"pad_id": 0, "direction": "left"}, False), ({}, True), (None, False)],
)
def test_texts_wait_for_each_other_only_where_padding_changes_nothing(
    tmp_path: Path, padding: dict[str, Any] | None, batches: bool
) -> None:
    write_text_model(tmp_path / "mood", "text-classification", ("sad", "glad"))
    file = tmp_path / "mood" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    if padding:
        tokenizer.enable_padding(**padding)
        tokenizer.save(str(file))
    elif padding is None:  # no token is known to be padding
        file.write_text(file.read_text().replace("[PAD]", "[NONE]"))
    client: Any = load_task(tmp_path / "mood", task="text-classification")
    assert client.takes_batches() is batches
    if padding is not None:
        # Where padding is needed, it goes to its side, and is not read.
        client.min_length = 12
        inputs = client.preprocess(client.payload.model_validate({"text": TEXT}))
        own = slice(5, None) if padding.get("direction") == "left" else slice(len(TOKENS))
        assert inputs["input_ids"][own].tolist() == [WORDS.index(word) for word in TOKENS]
        assert inputs["attention_mask"].sum() == inputs["attention_mask"][own].sum() == len(TOKENS)


def test_a_model_without_a_mask_reads_no_padding(tmp_path: Path) -> None:
    write_text_model(tmp_path / "sentences", "sentence-embeddings")
    assert not load_task(tmp_path / "sentences", task="sentence-embeddings").takes_batches()
