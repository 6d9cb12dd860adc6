"""The lines of a box that is ready are commands that a shell takes as they are."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sm.run_state import Box
from sm.server.supervisor import ready_message
from sm.settings import Settings


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """A box with four clients, as its workers describe them, and a model of its own."""
    rows = [row("words", "text/plain"), row("cats", "image/png"), row("bare"), row("long", "audio/wav")]
    sample = tmp_path / "with space"
    sample.mkdir()
    (sample / "cat.png").write_bytes(b"png")
    (sample / "payload.json").write_text(json.dumps({"text": "it's a row"}))
    (sample / "long.json").write_text(json.dumps({"audio": "A" * 1000}))
    samples = {
        "words": {"payload.json": str(sample / "payload.json")},
        "cats": {"payload.json": str(sample / "payload.json"), "cat.png": str(sample / "cat.png")},
        "bare": {},
        "long": {"payload.json": str(sample / "long.json")},
    }
    repository = tmp_path / "models"
    for name in ("cats_model", "plain"):
        (repository / name).mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text("")
    made = Box("1", tmp_path, repository, 1, 2, 3, "nginx", 0)
    made.clients_file.write_text(json.dumps(rows))
    made.samples_file.write_text(json.dumps(samples))
    return made


def row(name: str, *content_types: str) -> dict[str, Any]:
    models = ["cats_model"] if name == "cats" else []
    types = ["application/json", *content_types]
    return {"name": name, "client": "X", "description": "", "models": models, "content_types": types}


def commands(settings: Settings, box: Box) -> list[str]:
    return [line for line in ready_message.message(settings, box).splitlines() if "curl" in line]


def test_every_client_that_is_served_has_a_command_from_its_sample(box: Box) -> None:
    cats, long, words = commands(replace(Settings(), port=18080), box)
    assert f"@{box.run}/with space/cat.png" in shlex.split(cats)
    assert "localhost:18080/invocations?modelname=cats" in shlex.split(cats)
    body = shlex.split(words)[shlex.split(words).index("--data") + 1]
    assert json.loads(body) == {"modelname": "words", "payload": {"text": "it's a row"}}
    assert long.startswith('{ printf %s \'{"modelname":"long","payload":\'; cat ')
    assert f"cat '{box.run}/with space/long.json'" in long


def test_the_page_a_client_without_a_sample_and_a_model_without_a_client_are_named(box: Box) -> None:
    text = ready_message.message(replace(Settings(), port=18080), box)
    assert "The page to try it: http://localhost:18080/\n" in text
    assert "# bare: X\n# it has no sample; what it takes: http://localhost:18080/docs" in text
    assert "# No client calls plain: " in text


def test_they_say_how_a_box_with_tls_and_keys_is_called(box: Box) -> None:
    settings = Settings(tls_certificate=Path("box.pem"), tls_key=Path("box.key"), api_keys_file=Path("keys"))
    for line in commands(settings, box):
        assert 'curl -s --cacert box.pem -H "x-api-key: $KEY" ' in line
        assert "https://localhost:8443/invocations" in line


def test_a_log_gets_one_line(box: Box) -> None:
    line = ready_message.summary(replace(Settings(), port=18080), box)
    assert (
        line
        == "http://localhost:18080 serves the clients bare, cats, long, words; the page: http://localhost:18080/"
    )


def test_in_multi_model_mode_it_says_how_a_model_is_loaded(box: Box) -> None:
    assert "POST http://localhost:8080/models" in ready_message.message(
        Settings(), replace(box, multi_model=True)
    )
