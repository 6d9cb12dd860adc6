"""A distribution of somebody else brings a kind of client: it is installed, and a box serves its files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.box_fixture import Boxes
from tests.support.multi_model_endpoint import MultiModelEndpoint, shared_endpoint

PROJECT = """
[build-system]
requires = ["hatchling>=1.27,<2"]
build-backend = "hatchling.build"
[project]
name = "answers-of-rules"
version = "1.0"
[project.entry-points."sm.client_sources"]
rules = "answers_of_rules:RULES"
"""
#: Serves ``*.rules`` in a code folder, and ``answer.rules`` in a model's folder: a line for each word and its answer.
MODULE = '''
from sm.client import Client, TextPayload
from sm.plugins.sources import ClientSource, SourceKind, derive


class Rules(Client):
    """Answers a word by a table."""

    payload = TextPayload
    answers = {}

    def inference(self, payload):
        return self.answers.get(payload.text, "?")


class RuleFiles(SourceKind):
    name = "rules"

    def find(self, code):
        return [ClientSource(file.stem, file, self.name) for file in sorted(code.folder.glob("*.rules"))]

    def find_in_repository(self, repository):
        files = sorted(repository.glob("*/answer.rules"))
        return [ClientSource(file.parent.name, file, self.name) for file in files]

    def client_class(self, source):
        return derive(Rules, answers=dict(line.split("=") for line in source.file.read_text().splitlines()))


RULES = RuleFiles()
'''


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the distribution is installed in, by pip from its source."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "answers_of_rules").mkdir()
    (source / "answers_of_rules" / "__init__.py").write_text(MODULE)
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation")
    subprocess.run([*command, "--target", str(target), str(source)], check=True, cwd=source)
    return target


def test_a_box_serves_its_files_without_any_model_and_beside_the_models(
    boxes: Boxes, installed: Path, tmp_path: Path
) -> None:
    code = tmp_path / "model" / "code"
    code.mkdir(parents=True)
    (code / "capitals.rules").write_text("France=Paris\nKenya=Nairobi")
    with boxes.own(code.parent, PYTHONPATH=str(installed)) as box:
        assert box.invoke("capitals", "Kenya").json()["result"] == "Nairobi"
        answered = box.invoke("capitals", [{"text": "France"}, {"text": "Atlantis"}]).json()["result"]
        assert answered == ["Paris", "?"]


def test_in_multi_model_mode_an_archive_may_bring_one(boxes: Boxes, installed: Path, tmp_path: Path) -> None:
    endpoint: MultiModelEndpoint = shared_endpoint(boxes, PYTHONPATH=str(installed))
    folder = endpoint.platform.home / "colours" / "model"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "colours.rules").write_text("sky=blue")
    endpoint.load_successfully("colours", str(folder))
    assert endpoint.box.invoke("colours", "sky").json()["result"] == "blue"


def test_a_code_folder_in_which_nothing_is_a_client_stops_the_start(boxes: Boxes, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "capitals.rules").write_text("France=Paris")
    assert "no file in" in boxes.failed_start(tmp_path)
