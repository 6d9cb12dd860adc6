"""``sm invoke`` names the file of an answer by its content type."""

from __future__ import annotations

import json
from pathlib import Path

import pybase64
import pytest

from trireme_tools.invoke.messages import Reply
from trireme_tools.invoke.showing import format_reply


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("audio/wav", "speech.wav"),
        ("audio/ogg; codecs=opus", "speech.ogg"),
        ("image/webp", "speech.webp"),
        ("application/octet-stream", "speech.bin"),
    ],
)
def test_a_body_is_written_to_a_file_of_its_type(kind: str, name: str, tmp_path: Path) -> None:
    lines = list(format_reply(Reply(200, kind, b"\x00\x01RIFF"), "speech", tmp_path))
    assert name in lines[0]
    assert (tmp_path / name).read_bytes() == b"\x00\x01RIFF"


def test_files_within_a_list_are_written_too(tmp_path: Path) -> None:
    entry = {"body": pybase64.b64encode(b"RIFF").decode(), "content_type": "audio/wav"}
    body = json.dumps({"modelname": "speech", "result": [entry, entry]}).encode()
    text = "\n".join(format_reply(Reply(200, "application/json", body), "speech", tmp_path))
    assert {file.name for file in tmp_path.iterdir()} == {"speech.wav", "speech-2.wav"}
    assert "speech-2.wav" in text
