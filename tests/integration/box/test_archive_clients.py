"""Clients that come in a model archive: found, kept apart, and in the place of the box's own if they say so."""

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


def write(repository: Path, name: str, word: str, text: str = CLIENT) -> None:
    sample = repository / "code" / name / "sample"
    sample.mkdir(parents=True)
    (sample.parent / "client.py").write_text(text)
    (sample.parent / "words.py").write_text(f"WORD = {word!r}\n")
    (sample / "payload.json").write_text("{}")
    (sample / "golden.json").write_text(json.dumps(word))


def replacing(text: str = CLIENT) -> str:
    return text.replace("    models", '    replaces = "resnet"\n    models')


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and three clients whose modules have one name."""
    folder = tmp_path_factory.mktemp("archive") / "model"
    MODELS["echo"].write(folder / "echo")
    write(folder, "one", "first")
    write(folder, "two", "second", CLIENT.replace("from .words", "from words"))
    write(folder, "resnet", "not ImageNet", replacing())
    return folder


@pytest.fixture(scope="module")
def served(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    with running_box(tmp_path_factory.mktemp("box"), archive, clients=()) as box:
        yield box


def command(*words: str, archive: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRIREME_MODEL_REPOSITORY": str(archive)}
    line = [sys.executable, "-m", "sm.cli", *words]
    return subprocess.run(line, cwd=HERE, env=environment, capture_output=True, text=True)


def test_each_client_of_an_archive_has_modules_of_its_own(served: RunningBox) -> None:
    answers = {name: served.invoke(name, {}).json()["result"] for name in ("one", "two")}
    assert answers == {"one": "first", "two": "second"}


def test_a_client_that_says_so_is_served_and_described_in_the_place_of_the_boxs(served: RunningBox) -> None:
    assert served.invoke("resnet", {}).json()["result"] == "not ImageNet"
    document = requests.get(f"{served.url}/openapi.json", timeout=10).text
    assert "Says its word." in document
    assert "ImageNet classification" not in document
    assert "clients/resnet/client.py is replaced by" in served.log.read_text()


def test_sm_test_compares_with_the_archives_golden_answer(served: RunningBox, archive: Path) -> None:
    completed = command("test", "--url", served.url, archive=archive)
    assert completed.returncode == 0, completed.stdout
    assert [line.split()[:2] for line in completed.stdout.splitlines() if "equal" in line] == [
        [name, "equal"] for name in ("one", "resnet", "two")
    ]
