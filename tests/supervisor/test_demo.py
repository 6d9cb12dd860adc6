"""The demo's last lines are commands that a shell takes as they are."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

from sm.server.supervisor import demo
from sm.settings import Settings


def commands(settings: Settings) -> list[list[str]]:
    return [shlex.split(line) for line in demo.lines(settings).splitlines() if line.startswith("curl")]


def test_there_is_one_for_each_model_at_the_boxs_port(tmp_path: Path) -> None:
    cat, street, sentence = commands(replace(Settings(), port=18080, cache=tmp_path / "with space"))
    assert all(
        any(word.startswith("localhost:18080/invocations") for word in command)
        for command in (cat, street, sentence)
    )
    assert "localhost:18080/invocations?modelname=resnet" in cat
    assert f"@{tmp_path}/with space/pictures/bus.jpg" in street
    body = json.loads(sentence[sentence.index("--data") + 1])
    assert body["modelname"] == "bert_base"
    assert "[MASK]" in body["payload"]["text"]


def test_they_say_how_a_box_with_tls_and_keys_is_called() -> None:
    settings = Settings(tls_certificate=Path("box.pem"), tls_key=Path("box.key"), api_keys_file=Path("keys"))
    for command in commands(settings):
        assert command[:6] == ["curl", "-s", "--cacert", "box.pem", "-H", "x-api-key: $KEY"]
        assert any(word.startswith("https://localhost:8443/invocations") for word in command)


def test_the_repository_is_the_one_that_prepare_builds(tmp_path: Path) -> None:
    assert demo.repository(replace(Settings(), cache=tmp_path)) == tmp_path / "repository" / "cpu"
