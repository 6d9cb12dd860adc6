"""Tasks of texts: embeddings, padding, limits and what stops the start. The other answers: ``test_pipelines.py``."""

from __future__ import annotations

import math
import sys
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from sm.client.batches import Batches
from sm.errors import StartError, WrongPayload
from sm.invocation import Invocation, running
from sm.router.records import OrderedMap, run_records
from sm.router.request_types import DispatchRequest
from sm.settings import HERE
from tests.support.task_models import TABLE, VECTOR, WORDS, ask, load_task, write_text_model
from trireme_extensions.tasks import text

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


class Counted:
    """A real tokenizer that notes what it tokenizes."""

    texts: ClassVar[list[str]] = []

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def from_str(cls, text: str) -> Counted:
        return cls(Tokenizer.from_str(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def encode(self, *texts: Any, **options: Any) -> Any:
        self.texts.extend(texts)
        return self.tokenizer.encode(*texts, **options)

    def encode_batch(self, texts: list[Any], **options: Any) -> Any:
        for each in texts:
            self.texts.extend([each] if isinstance(each, str) else each)
        return self.tokenizer.encode_batch(texts, **options)


LONG = "ada lives in paris " * 1_700


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[Any]]]:
    """Returns what each record of a request to a model of pairs answers; they run on eight threads."""
    monkeypatch.setattr(text, "Tokenizer", Counted)
    monkeypatch.setattr(Counted, "texts", [])
    labels = {"text-classification": ("good",), "zero-shot-classification": ("contradiction", "entailment")}
    with ThreadPoolExecutor(8) as pool:

        def answer(task: str, records: list[Any], **parameters: Any) -> list[Any]:
            write_text_model(tmp_path / task, "text-classification", labels[task])
            client = load_task(tmp_path / task, task=task)
            client._marks.batches = Batches(client) if client.takes_batches() else None
            Counted.texts.clear()
            request = DispatchRequest(task, records, True, parameters, client=client)
            invocation = Invocation(math.inf)
            with running(invocation):
                found = run_records(
                    request, invocation, lambda result: result, lambda error: error, OrderedMap(pool, 8)
                )
                return [*found]

        yield answer


@pytest.mark.parametrize("query", ["ada lives in paris", LONG], ids=["short", "long"])
def test_a_query_is_tokenized_once_however_many_documents_there_are(
    shared: Callable[..., list[Any]], query: str
) -> None:
    documents = [f"she ? {number}" for number in range(500)]
    rows = shared("text-classification", documents, query=query)
    assert all(row[0]["label"] == "good" for row in rows)
    assert all(Counted.texts.count(document) == 1 for document in documents)
    of_query = [each for each in Counted.texts if each.startswith("ada")]
    # Of a long one a part shows how much the model reads, and that is tokenized by itself.
    assert len(of_query) == (1 if query != LONG else 3)
    assert sum(map(len, of_query)) < 12_500


def test_a_text_is_tokenized_once_however_many_labels_there_are(shared: Callable[..., list[Any]]) -> None:
    labels = [f"paris {number}" for number in range(100)]
    (rows,) = shared("zero-shot-classification", [{"text": "ada lives in paris", "labels": labels}])
    assert len(rows) == 100
    assert Counted.texts.count("ada lives in paris") == 1


def test_of_a_long_text_only_the_beginning_or_the_end_is_tokenized(
    shared: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """The tokens are those of the whole text."""
    write_text_model(tmp_path / "whole", "text-classification", ("good",))
    whole: Any = load_task(tmp_path / "whole", task="text-classification", truncate=True)
    for end in ("right", "left"):
        rows = shared("text-classification", [LONG], truncate=True, truncation_direction=end)
        assert sum(map(len, Counted.texts)) < 13_000 < len(LONG)
        tokenizer = Tokenizer.from_file(str(tmp_path / "whole" / "tokenizer.json"))
        tokenizer.enable_truncation(512, direction=end)
        ids = tokenizer.encode(LONG).ids
        payload = whole.payload(text=LONG, parameters={"truncate": True, "truncation_direction": end})
        (encoding,) = whole.encode([payload])
        assert encoding.ids == ids
        assert rows == [whole.inference(payload)]
    (refused,) = shared("text-classification", [LONG])
    assert (refused.status, refused.details["field"]) == (422, "payload[0].text")


def test_a_request_has_a_limit_of_texts_times_others(
    shared: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "MAX_SHARED_TOKENS", 4_000)
    documents = ["she"] * 1_001
    for error in shared("text-classification", documents, query="ada lives in paris"):
        assert (error.status, error.code) == (413, "too_large")
        assert error.details["max_shared_tokens"] == 4_000
    assert Counted.texts.count("ada lives in paris") == 1
    rows = shared("text-classification", documents[1:], query="ada lives in paris")
    assert all(row[0]["label"] == "good" for row in rows)
    record = {"text": "ada lives in paris", "labels": ["live"] * 100}
    codes = [getattr(row, "code", "ok") for row in shared("zero-shot-classification", [record] * 20)]
    assert sorted(codes) == ["ok"] * 10 + ["too_large"] * 10


@pytest.mark.parametrize(
    ("task", "labels", "record"),
    [
        ("token-classification", MOODS, lambda text: {"text": text, "parameters": {"stride": 64}}),
        ("fill-mask", (), lambda text: {"text": text.replace("lives", "[MASK]")}),
    ],
)
def test_a_text_four_times_as_long_takes_about_four_times_the_time(
    tmp_path: Path, task: str, labels: tuple[str, ...], record: Callable[[str], dict[str, Any]]
) -> None:
    write_text_model(tmp_path / "model", task, labels)
    client = load_task(tmp_path / "model", task=task, max_length=2**13 if task == "fill-mask" else 256)
    work = getattr(client, "find_masks", client.inference)

    def seconds(words: int) -> float:
        payload, started = client.payload.model_validate(record(TEXT * words)), time.thread_time()
        work(payload)
        return time.thread_time() - started

    seconds(1)
    # Each look at the tokens of a whole text makes them again: one for each token takes sixteen times.
    assert min(seconds(600) for _ in range(3)) < 10 * min(seconds(150) for _ in range(5))


@pytest.mark.parametrize("strategy", [None, "none", "simple"])
def test_tokens_without_a_label_take_no_step_of_the_interpreter(tmp_path: Path, strategy: str | None) -> None:
    """It would be kept from other requests while it makes the answer of a long text."""
    write_text_model(tmp_path / "model", "token-classification", ("O", "B-PER"))
    client = load_task(tmp_path / "model", task="token-classification")

    def calls(words: int) -> int:
        options = {"aggregation_strategy": strategy} if strategy else {}
        payload = client.payload.model_validate({"text": "ada " * words, "parameters": options})
        tokens = client.prepare(payload)
        outputs = {"logits": np.tile(np.array([[2, 0]], np.float32), (1, tokens, 1))}
        made: list[str] = []
        sys.setprofile(lambda _, event, __: made.append(event))
        try:
            assert client.postprocess_batch(outputs, [payload]) == [[]]
        finally:
            sys.setprofile(None)
        return len(made)

    calls(1)
    assert calls(400) == calls(10)


def train(kind: str, texts: list[str]) -> Tokenizer:
    """Return a tokenizer of BERT's, RoBERTa's or XLM-RoBERTa's kind, trained on texts."""
    if kind == "WordPiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=600, special_tokens=["[PAD]", "[UNK]"])
    elif kind == "BPE":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=600, special_tokens=["<pad>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
        )
        trainer = trainers.UnigramTrainer(
            vocab_size=600, special_tokens=["<pad>", "<unk>"], unk_token="<unk>"
        )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@pytest.mark.parametrize("end", ["right", "left"])
@pytest.mark.parametrize("kind", ["WordPiece", "BPE", "Unigram"])
def test_a_part_of_a_long_text_has_the_tokens_of_the_whole(tmp_path: Path, kind: str, end: str) -> None:
    page = (HERE / "CONTRIBUTING.md").read_text()
    client = load_mood(tmp_path / "mood", max_length=64, truncate=True)
    client.tokenizer = train(kind, page.splitlines())
    client.enable_truncation(client.tokenizer)
    client.__dict__.pop("whole", None)
    # BERT knows no word of over 100 characters, and the part of one that is left has many tokens.
    words = ["the       " * count + "eo" * 60 + f" {page}" for count in (42, 44, 46)]
    for whole in (*(page[start:] for start in range(0, 4000, 97)), *words):
        text = whole if end == "right" else " ".join(reversed(whole.split(" ")))
        (expected,) = client.whole.encode_batch([text])
        (payload,) = [
            client.payload.model_validate({"text": text, "parameters": {"truncation_direction": end}})
        ]
        (found,) = client.encode([payload])
        own = found.ids
        assert own == (expected.ids[:64] if end == "right" else expected.ids[-64:])
        part = client.part_of(text, end).ids
        assert (part[:64] if end == "right" else part[-64:]) == own
