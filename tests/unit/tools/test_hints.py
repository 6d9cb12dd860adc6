"""The message of a ready box has commands that a shell can run unchanged."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from sm.run_state import Box
from sm.settings import HERE, Settings
from trireme_tools import hints


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """A box with four clients, as its workers describe them."""
    folder = tmp_path / "with space"
    folder.mkdir()
    (folder / "cat.png").write_bytes(b"png")
    (folder / "payload.json").write_text(json.dumps({"text": "it's a row"}))
    (folder / "long.json").write_text(json.dumps({"audio": "A" * 1000}))
    samples = {"bare": {}, "broken": {}, "words": {"payload.json": str(folder / "payload.json")}}
    samples |= {
        "cats": {"cat.png": str(folder / "cat.png")},
        "long": {"payload.json": str(folder / "long.json")},
    }
    kinds = {"words": "text/plain", "cats": "image/png", "long": "audio/wav"}
    row: dict[str, object] = {"client": "X", "description": "", "models": [], "load_error": None}
    rows = [
        {**row, "name": name, "content_types": ["application/json", kinds.get(name, "text/csv")]}
        for name in samples
    ]
    box = Box("1", tmp_path, tmp_path / "models", 1, 2, 3, "nginx", 0)
    broken = {**rows[0], "name": "broken", "load_error": "SyntaxError"}
    box.clients_file.write_text(json.dumps([*rows, broken]))
    box.samples_file.write_text(json.dumps(samples))
    return box


def curl_commands(settings: Settings, box: Box) -> list[str]:
    return [line for line in hints.ready_message(settings, box).splitlines() if "curl" in line]


def test_a_person_is_told_the_dashboards_address(box: Box) -> None:
    assert "localhost:18080/dashboard" in hints.ready_message(replace(Settings(), port=18080), box)


def test_every_served_client_has_a_command_with_its_sample(box: Box) -> None:
    cats, long, words = curl_commands(replace(Settings(), port=18080), box)
    assert f"@{box.run}/with space/cat.png" in shlex.split(cats)
    assert "localhost:18080/invocations?modelname=cats" in shlex.split(cats)
    body = shlex.split(words)[shlex.split(words).index("--data") + 1]
    assert json.loads(body) == {"modelname": "words", "payload": {"text": "it's a row"}}
    assert long.startswith('{ printf %s \'{"modelname":"long","payload":\'; cat ')
    assert f"cat '{box.run}/with space/long.json'" in long


def test_with_tls_and_api_keys_the_commands_have_certificate_and_key(box: Box) -> None:
    settings = Settings(tls_certificate=Path("box.pem"), tls_key=Path("box.key"), api_keys_file=Path("keys"))
    for line in curl_commands(settings, box):
        assert 'curl -s --cacert box.pem -H "x-api-key: $KEY" ' in line
        assert "https://localhost:8443/invocations" in line


@pytest.mark.parametrize("is_example", [True, False], ids=["an example's copy", "a client of its name"])
def test_a_copied_example_has_its_own_command(box: Box, tmp_path: Path, is_example: bool) -> None:
    sample = HERE / "examples/t5_translate/repository/code/t5_translate/sample/payload.json"
    copied = tmp_path / "payload.json"
    copied.write_text(sample.read_text() if is_example else '{"text": "other"}')
    row = {"name": "t5_translate", "content_types": ["application/json"]}
    command = hints.sample_command(Settings(), row, {"payload.json": str(copied)})
    assert ("Accept: text/event-stream" in shlex.split(command)) is is_example
