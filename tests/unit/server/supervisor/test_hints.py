"""The message of a ready box has commands that a shell can run unchanged."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sm.run_state import Box
from sm.server.supervisor import hints
from sm.settings import Settings


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """A box with four clients, as its workers describe them, and a model of its own."""
    rows = [
        client_row("words", "text/plain"),
        client_row("cats", "image/png"),
        client_row("bare"),
        client_row("long", "audio/wav"),
        {**client_row("broken"), "load_error": "SyntaxError"},
    ]
    sample_folder = tmp_path / "with space"
    sample_folder.mkdir()
    (sample_folder / "cat.png").write_bytes(b"png")
    (sample_folder / "payload.json").write_text(json.dumps({"text": "it's a row"}))
    (sample_folder / "long.json").write_text(json.dumps({"audio": "A" * 1000}))
    samples = {
        "words": {"payload.json": str(sample_folder / "payload.json")},
        "cats": {
            "payload.json": str(sample_folder / "payload.json"),
            "cat.png": str(sample_folder / "cat.png"),
        },
        "bare": {},
        "long": {"payload.json": str(sample_folder / "long.json")},
    }
    repository = tmp_path / "models"
    for name in ("cats_model", "plain"):
        (repository / name).mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text("")
    box = Box("1", tmp_path, repository, 1, 2, 3, "nginx", 0)
    box.clients_file.write_text(json.dumps(rows))
    box.samples_file.write_text(json.dumps(samples))
    return box


def client_row(name: str, *content_types: str) -> dict[str, Any]:
    models = ["cats_model"] if name == "cats" else []
    types = ["application/json", *content_types]
    return {
        "name": name,
        "client": "X",
        "description": "",
        "models": models,
        "content_types": types,
        "load_error": None,
    }


def curl_commands(settings: Settings, box: Box) -> list[str]:
    return [line for line in hints.ready_message(settings, box).splitlines() if "curl" in line]


def test_every_served_client_has_a_command_with_its_sample(box: Box) -> None:
    cats, long, words = curl_commands(replace(Settings(), port=18080), box)
    assert f"@{box.run}/with space/cat.png" in shlex.split(cats)
    assert "localhost:18080/invocations?modelname=cats" in shlex.split(cats)
    body = shlex.split(words)[shlex.split(words).index("--data") + 1]
    assert json.loads(body) == {"modelname": "words", "payload": {"text": "it's a row"}}
    assert long.startswith('{ printf %s \'{"modelname":"long","payload":\'; cat ')
    assert f"cat '{box.run}/with space/long.json'" in long


def test_the_page_clients_without_a_sample_and_models_without_a_client_are_named(box: Box) -> None:
    message = hints.ready_message(replace(Settings(), port=18080), box)
    assert "The page to try it: http://localhost:18080/\n" in message
    assert "# bare: X\n# it has no sample; what it takes: http://localhost:18080/docs" in message
    assert "# No client calls plain: " in message


def test_with_tls_and_api_keys_the_commands_have_certificate_and_key(box: Box) -> None:
    settings = Settings(tls_certificate=Path("box.pem"), tls_key=Path("box.key"), api_keys_file=Path("keys"))
    for line in curl_commands(settings, box):
        assert 'curl -s --cacert box.pem -H "x-api-key: $KEY" ' in line
        assert "https://localhost:8443/invocations" in line
