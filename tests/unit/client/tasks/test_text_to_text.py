"""Text to text generates what a plain loop over the same two graphs does, in parts that join to the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.client.base import Client
from sm.client.tasks import TextToText
from sm.client.tensor_roles import UnsuitableModel
from sm.errors import WrongPayload
from tests.support.task_models import load_translator, write_translator


def ask(client: Client, text: str, **parameters: int) -> object:
    return client.inference(client.payload.model_validate({"text": text, "parameters": parameters}))


def test_the_likeliest_tokens_are_generated_until_the_end_or_the_limit(tmp_path: Path) -> None:
    client = load_translator(write_translator(tmp_path / "german"))
    assert ask(client, "ada lives in paris") == {"text": "ada wohnt in paris"}
    assert ask(client, "ada lives in paris", max_tokens=2) == {"text": "ada wohnt"}
    assert ask(client, "") == {"text": ""}


def test_the_parts_of_a_stream_join_to_the_whole(tmp_path: Path) -> None:
    client = load_translator(write_translator(tmp_path / "german"))
    parts = list(client.stream(client.payload.model_validate({"text": "ada lives in paris"})))
    assert parts == ["ada", " wohnt", " in", " paris"]


def test_a_character_is_sent_when_all_its_bytes_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = load_translator(write_translator(tmp_path / "german"))
    assert isinstance(client, TextToText)
    # ByteLevel: three tokens are one euro sign.
    client.tokenizer = type(
        "Bytes", (), {"decode": staticmethod(lambda ids: bytes(ids).decode(errors="replace"))}
    )()
    monkeypatch.setattr(client, "generate", lambda payload: iter("1 €!".encode()))
    assert list(client.stream(client.payload.model_validate({"text": "a"}))) == ["1", " ", "€", "!"]


def test_a_text_that_is_too_long_is_refused_with_both_lengths(tmp_path: Path) -> None:
    client = load_translator(write_translator(tmp_path / "german"), max_length=3)
    with pytest.raises(WrongPayload):
        ask(client, "ada ada ada")


def test_a_decoder_with_a_cache_is_refused(tmp_path: Path) -> None:
    folder = write_translator(tmp_path / "german")
    (folder / "decoder_model.onnx").write_bytes((folder / "encoder_model.onnx").read_bytes())
    with pytest.raises(UnsuitableModel, match="decoder_model.onnx"):
        load_translator(folder)
