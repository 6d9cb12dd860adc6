"""The bert_base client on a real Triton: sensible words, and any text is answered or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from sm.client import Client, TensorClient
from sm.client.tasks.text import minimum_length
from sm.errors import StartError, WrongPayload
from sm.plugins.checks import check
from sm.plugins.loading import ClientSource, load
from sm.repository.manifest import Manifest, Profile, Source, Tool, now
from sm.router.classify import DispatchRequest
from sm.router.dispatch import validate_payload
from sm.settings import HERE
from sm.triton.transport import Transport

FOLDER = HERE / "clients" / "bert_base"
MIB = 2**20


@pytest.fixture(scope="module")
def client(transport: Transport, repository: Path) -> Client:
    """The client as the box loads it."""
    source = ClientSource("bert_base", FOLDER / "client.py")
    loaded = load(source, transport, repository)
    check(loaded, source, transport)
    return loaded


def infer(client: Client, text: str, **parameters: Any) -> list[dict[str, Any]]:
    """Validate the payload and run the client, as the router does."""
    invocation = DispatchRequest("bert_base", [{"text": text}], parameters=parameters, client=client)
    return cast(
        "list[dict[str, Any]]", client.inference(validate_payload(client, invocation, {"text": text}))
    )


def refused_error(client: Client, text: str, **parameters: Any) -> WrongPayload:
    with pytest.raises(WrongPayload) as raised:
        infer(client, text, **parameters)
    return raised.value


def filled_words(answer: list[dict[str, Any]], before: str = "", after: str = "") -> list[str]:
    """The filled-in words between two texts that every answer must keep.

    A word's ending joins the word before it, so the last space of ``before`` may be missing.
    """
    texts = [row["token"] for row in answer]
    unchanged = before.rstrip(" ")
    assert all(text.startswith(unchanged) and text.endswith(after) for text in texts), texts
    return [
        text[len(unchanged) : len(text) - len(after)].removeprefix(before[len(unchanged) :]) for text in texts
    ]


def test_the_sample_gets_its_golden_answer(client: Client) -> None:
    """The golden answer comes from the original weights in PyTorch."""
    payload = json.loads((FOLDER / "sample" / "payload.json").read_text())
    golden = json.loads((FOLDER / "sample" / "golden.json").read_text())
    answer = infer(client, payload["text"])
    assert [row["token"] for row in answer] == [row["token"] for row in golden]
    assert [row["score"] for row in answer] == pytest.approx([row["score"] for row in golden], abs=1e-3)


@pytest.mark.parametrize("top", [1, 100])
def test_top_sets_the_number_of_sentences(client: Client, top: int) -> None:
    assert len({row["token"] for row in infer(client, "A [MASK] day.", top=top)}) == top


@pytest.mark.parametrize("around", [("", ""), ("[CLS]", "[SEP]"), ("[UNK] [PAD]", "[unused5]")])
def test_special_tokens_are_never_proposed(client: Client, around: tuple[str, str]) -> None:
    proposed = filled_words(infer(client, "[MASK]".join(around), top=100), *around)
    assert not [word for word in proposed if word.startswith("[") and len(word) > 1]


@pytest.mark.parametrize("text", ["", " ", "No mask.", "[mask] [ MASK ] [MASK MASK]", "\0", "😀"])
def test_a_text_without_a_mask_is_refused(client: Client, text: str) -> None:
    error = refused_error(client, text)
    assert (error.status, error.details["field"]) == (422, "payload.text")


def test_a_text_of_exactly_the_models_length_is_answered(client: Client) -> None:
    assert len(infer(client, "[MASK]" + " word" * 509)) == 5


def test_a_text_that_is_too_long_is_refused_with_its_length(client: Client) -> None:
    error = refused_error(client, "[MASK]" + " word" * 510)
    assert "513" in error.sentence
    assert "512" in error.sentence
    assert error.details["field"] == "payload.text"


@pytest.mark.parametrize(
    ("cut_before", "before", "after", "cut_after"),
    [(0, 0, 500, 2500), (2500, 500, 0, 0), (1250, 250, 250, 1250), (150, 250, 250, 150)],
)
def test_truncate_reads_a_long_text_around_its_mask(
    client: Client, cut_before: int, before: int, after: int, cut_after: int
) -> None:
    """The text that is cut off stays in the sentences and does not change their scores."""
    window = "word " * before + "She poured a cup of [MASK] and sat down." + " word" * after
    long_text = "moon " * cut_before + window + " moon" * cut_after
    window_answer, long_answer = infer(client, window), infer(client, long_text, truncate=True)
    assert [row["score"] for row in long_answer] == pytest.approx([row["score"] for row in window_answer])
    assert filled_words(long_answer, *long_text.split("[MASK]")) == filled_words(
        window_answer, *window.split("[MASK]")
    )


def test_truncate_refuses_masks_too_far_apart(client: Client) -> None:
    error = refused_error(client, "[MASK] " + "word " * 600 + "[MASK]", truncate=True)
    assert error.details["field"] == "payload.text"


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("filler", ["word ", "x", "😀", "[MASK]", " ", "\0", "e\u0301"])
def test_a_megabyte_of_text_is_refused_before_it_is_tokenized(
    client: Client, monkeypatch: pytest.MonkeyPatch, filler: str, truncate: bool
) -> None:
    monkeypatch.setattr(client, "tokenizer", None)  # tokenizing so long a text takes many seconds
    error = refused_error(client, "[MASK] " + filler * (MIB // len(filler)), truncate=truncate)
    assert "32,768" in error.sentence


def test_a_broken_description_of_the_model_stops_the_start(client: Client, tmp_path: Path) -> None:
    model = tmp_path / "bert_base"
    model.mkdir()
    (model / "preprocess.json").write_text(
        '{"mask_token": "[MASK]", "max_length": "long", "max_characters": 9}'
    )
    (model / "tokenizer.json").symlink_to(client.repository / "bert_base" / "tokenizer.json")
    with pytest.raises(StartError, match="max_length"):
        type(client)(client.triton, FOLDER, tmp_path).setup()


def test_a_text_is_padded_to_the_shortest_length_of_a_plan(client: Client) -> None:
    text = "The world has [MASK] people."
    unpadded = infer(client, text)
    assert isinstance(client, TensorClient)
    client.min_length = 128  # type: ignore[attr-defined]
    try:
        asked = DispatchRequest("bert_base", [], client=client)
        inputs = client.preprocess(validate_payload(client, asked, {"text": text}))
        assert {name: tensor.shape for name, tensor in inputs.items()} == dict.fromkeys(inputs, (128,))
        padded = infer(client, text)
    finally:
        client.min_length = 1  # type: ignore[attr-defined]
    assert [row["token"] for row in padded] == [row["token"] for row in unpadded]
    assert [row["score"] for row in padded] == pytest.approx([row["score"] for row in unpadded], rel=1e-3)


def test_the_shortest_length_of_a_plan_is_read_from_its_manifest(tmp_path: Path) -> None:
    profile = Profile(input="input_ids", minimum=(1, 128), optimum=(16, 128), maximum=(128, 128))
    for version, profiles in (("1", ()), ("2", (profile,))):
        (tmp_path / version).mkdir()
        Manifest(
            model="bert_base",
            target="tensorrt",
            source=Source(name="x", sha256="0" * 64),
            tool=Tool(name="TensorRT", version="11.0"),
            profiles=profiles,
            built=now(),
        ).write(tmp_path / version)
    (tmp_path / "3").mkdir()
    assert minimum_length(tmp_path) == 128
