"""The bert_base client: sensible words, and any text is answered or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from sm.client import Client
from sm.errors import StartError, WrongPayload
from sm.router.dispatch import validate_payload
from sm.router.request_types import DispatchRequest
from tests.support.task_models import in_process, load_built_in

MIB = 2**20


@pytest.fixture(scope="module")
def client(repository: Path) -> Client:
    """The client as the box loads it."""
    return load_built_in("bert_base", in_process(repository / "bert_base" / "1" / "model.onnx"), repository)


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


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        *((text, {}) for text in ("", " ", "No mask.", "[mask] [ MASK ] [MASK MASK]", "\0", "😀")),
        ("[MASK]" + " word" * 510, {}),
        ("[MASK] " + "word " * 600 + "[MASK]", {"truncate": True}),
    ],
)
def test_a_text_without_a_mask_or_that_is_too_long_is_refused(
    client: Client, text: str, parameters: dict[str, Any]
) -> None:
    error = refused_error(client, text, **parameters)
    assert (error.status, error.details["field"]) == (422, "payload.text")


def test_a_text_of_exactly_the_models_length_is_answered(client: Client) -> None:
    assert len(infer(client, "[MASK]" + " word" * 509)) == 5


def test_truncate_reads_a_long_text_around_its_mask(client: Client) -> None:
    """The text that is cut off stays in the sentences and does not change their scores."""
    window = "word " * 250 + "She poured a cup of [MASK] and sat down." + " word" * 250
    long_text = "moon " * 1250 + window + " moon" * 1250
    window_answer, long_answer = infer(client, window), infer(client, long_text, truncate=True)
    assert [row["score"] for row in long_answer] == pytest.approx([row["score"] for row in window_answer])
    expected = [long_text.replace(window, row["token"]) for row in window_answer]
    assert [row["token"] for row in long_answer] == expected


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("filler", ["word ", "x", "😀", "[MASK]", " ", "\0", "e\u0301"])
def test_a_megabyte_of_text_is_refused_before_it_is_tokenized(
    client: Client, monkeypatch: pytest.MonkeyPatch, filler: str, truncate: bool
) -> None:
    monkeypatch.setattr(client, "tokenizer", None)  # tokenizing so long a text takes many seconds
    error = refused_error(client, "[MASK] " + filler * (MIB // len(filler)), truncate=truncate)
    assert error.details["field"] == "payload.text"


def test_a_broken_description_of_the_model_stops_the_start(client: Client, tmp_path: Path) -> None:
    model = tmp_path / "bert_base"
    model.mkdir()
    description = {"mask_token": "[MASK]", "max_length": "long", "max_characters": 9}
    (model / "preprocess.json").write_text(json.dumps(description))
    (model / "tokenizer.json").symlink_to(client.repository / "bert_base" / "tokenizer.json")
    with pytest.raises(StartError, match="max_length"):
        type(client)(client.triton, client.folder, tmp_path).setup()
