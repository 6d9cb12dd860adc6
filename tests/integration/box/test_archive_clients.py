"""Clients in a model archive: they are found, isolated, and replace a client of the box if they say so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from sm.settings import HERE
from tests.support.boxes import RunningBox, running_box
from tests.support.tritons import MODELS

CLIENT = """
from sm.client.base import Client
from .words import WORD


class Says(Client):
    \"\"\"Says its word.\"\"\"

    models = ("echo",)

    def inference(self, payload):
        return WORD
"""


def write_client(repository: Path, name: str, word: str, text: str = CLIENT) -> None:
    sample = repository / "code" / name / "sample"
    sample.mkdir(parents=True)
    (sample.parent / "client.py").write_text(text)
    (sample.parent / "words.py").write_text(f"WORD = {word!r}\n")
    (sample / "payload.json").write_text("{}")
    (sample / "golden.json").write_text(json.dumps(word))


def replacing_resnet(text: str = CLIENT) -> str:
    return text.replace("    models", '    replaces = "resnet"\n    models')


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with a model and three clients whose modules have the same name."""
    folder = tmp_path_factory.mktemp("archive") / "model"
    MODELS["echo"].write(folder / "echo")
    write_client(folder, "one", "first")
    write_client(folder, "two", "second", CLIENT.replace("from .words", "from words"))
    write_client(folder, "resnet", "not ImageNet", replacing_resnet())
    return folder


@pytest.fixture(scope="module")
def box(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    with running_box(tmp_path_factory.mktemp("box"), archive, clients=()) as started:
        yield started


def run_sm(*arguments: str, archive: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRIREME_MODEL_REPOSITORY": str(archive)}
    command = [sys.executable, "-m", "sm.cli", *arguments]
    return subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True)


def test_a_client_with_replaces_is_served_and_described_instead_of_the_boxs(box: RunningBox) -> None:
    assert box.invoke("resnet", {}).json()["result"] == "not ImageNet"
    document = requests.get(f"{box.url}/openapi.json", timeout=10).text
    assert "Says its word." in document
    assert "ImageNet classification" not in document
    assert "clients/resnet/client.py is replaced by" in box.log.read_text()


def test_sm_test_compares_with_the_archives_golden_answers(box: RunningBox, archive: Path) -> None:
    completed = run_sm("test", "--url", box.url, archive=archive)
    assert completed.returncode == 0, completed.stdout
    assert [line.split()[:2] for line in completed.stdout.splitlines() if "equal" in line] == [
        [name, "equal"] for name in ("one", "resnet", "two")
    ]
