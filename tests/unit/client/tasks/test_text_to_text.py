"""Text to text generates in parts that join to the whole. The rules of generation: ``test_token_rules.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sm.client.tensor_roles import UnsuitableModel
from tests.support.task_models import ask, load_translator, write_translator

TEXT = "ada lives in paris"


def stream(client: Any, text: str) -> list[object]:
    return list(client.stream(client.payload.model_validate({"text": text})))


def test_the_likeliest_tokens_are_generated_until_the_end_or_the_limit(tmp_path: Path) -> None:
    client = load_translator(write_translator(tmp_path / "german"))
    assert ask(client, text=TEXT) == {"text": "ada wohnt in paris"}
    assert ask(client, text=TEXT, parameters={"max_tokens": 2}) == {"text": "ada wohnt"}
    assert ask(client, text="") == {"text": ""}
    assert stream(client, TEXT) == ["ada", " wohnt", " in", " paris"]


def test_a_character_is_sent_when_all_its_bytes_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = load_translator(write_translator(tmp_path / "german"))
    # ByteLevel: three tokens are one euro sign.
    decode = staticmethod(lambda ids: bytes(ids).decode(errors="replace"))
    monkeypatch.setattr(client, "tokenizer", type("Bytes", (), {"decode": decode})())
    monkeypatch.setattr(client, "generate", lambda payload: iter("1 €!".encode()))
    assert stream(client, "a") == ["1", " ", "€", "!"]


def test_a_decoder_with_a_cache_is_refused(tmp_path: Path) -> None:
    folder = write_translator(tmp_path / "german")
    (folder / "decoder_model.onnx").write_bytes((folder / "encoder_model.onnx").read_bytes())
    with pytest.raises(UnsuitableModel, match=r"decoder_model\.onnx"):
        load_translator(folder)
