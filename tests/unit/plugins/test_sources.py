"""The door client sources: kinds of other distributions find files beside the core's own, and make their clients."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sm import entry_points
from sm.client import Client
from sm.errors import BadInput, StartError
from sm.models.archive_layout import find_client
from sm.models.load_records import LoadRecord
from sm.models.record_clients import source_of
from sm.models.table import models_of
from sm.plugins.discovery import find_clients
from sm.plugins.sources import ClientSource, SourceKind, derive, discover_in_models
from sm.repository.models import CodeFolder
from tests.support.client_sources import EmptyTriton, write_client

SCRIPT = "def model_fn(folder): return 1\n"
TASK = '{"task": "fill-mask"}'


class Constant(Client):
    """Answers what its file says."""

    value: Any = None

    def inference(self, payload: Any) -> Any:
        return self.value


class Constants(SourceKind):
    """Files with the answer of a client, and with the names of Python files that are modules."""

    name = "constant"

    def find(self, code: CodeFolder) -> Iterator[ClientSource]:
        for file in sorted(code.folder.glob("*.constant")):
            modules = frozenset(code.folder / name for name in json.loads(file.read_text()))
            yield ClientSource(file.stem, file, self.name, modules=modules)

    def find_in_repository(self, repository: Path) -> Iterator[ClientSource]:
        for file in sorted(repository.glob("*/answer.constant")):
            yield ClientSource(file.parent.name, file, self.name)

    def client_class(self, source: ClientSource) -> type[Client]:
        return derive(Constant, value=json.loads(source.file.read_text()))


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The rows of the door; by default those of the distributions that are installed, and one more."""
    rows = [*entry_points.load("sm.client_sources"), Constants()]
    monkeypatch.setattr(entry_points, "load", lambda _: tuple(rows))
    return rows


def answers(folder: Path, repository: Path) -> dict[str, object]:
    found = find_clients((folder,), EmptyTriton(), repository)
    return {name: client.inference(None) for name, client in found.clients.items()}


def test_a_kind_of_another_distribution_is_served_beside_the_cores_own(
    tmp_path: Path, door: list[Any]
) -> None:
    write_client(tmp_path, "hello", words="WORD = 1")
    (tmp_path / "sums.constant").write_text('["helper.py"]')
    (tmp_path / "helper.py").write_text("raise AssertionError('a module was loaded as a client')")
    model = tmp_path / "model" / "words"
    model.mkdir(parents=True)
    (model / "answer.constant").write_text("7")
    assert answers(tmp_path, model.parent) == {"hello": 1, "sums": ["helper.py"], "words": 7}


def test_a_clients_own_file_goes_before_one_beside_its_model(tmp_path: Path, door: list[Any]) -> None:
    write_client(tmp_path, "words", words="WORD = 1")
    model = tmp_path / "model" / "words"
    model.mkdir(parents=True)
    (model / "answer.constant").write_text("7")
    assert [source.file for source in discover_in_models(model.parent, ())] == [model / "answer.constant"]
    assert answers(tmp_path, model.parent) == {"words": 1}


def test_an_archive_has_one_client_of_any_kind_and_its_record_finds_the_kind_again(
    tmp_path: Path, door: list[Any]
) -> None:
    (tmp_path / "sums.constant").write_text("[]")
    (tmp_path / "module.py").write_text("raise AssertionError")
    source = find_client(tmp_path, tmp_path)
    assert source and (source.file.name, source.kind) == ("sums.constant", "constant")
    record = LoadRecord("a", "/a", "1", "", {}, client=str(source.file), kind=source.kind)
    assert source_of(record).row is door[-1]
    (tmp_path / "client.py").write_text("")
    with pytest.raises(BadInput):
        find_client(tmp_path, tmp_path)


class Raises(Constants):
    name = "raises"

    def find(self, code: CodeFolder) -> Iterator[ClientSource]:
        raise OSError("no such thing")


class MakesNone(Constants):
    name = "none"

    def client_class(self, source: ClientSource) -> Any:
        return None


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ([Raises()], "'raises'.*OSError: no such thing"),
        ([MakesNone()], r"sums\.constant.*'none'"),
        ([Constants()], "constant, constant"),
    ],
    ids=["it raises", "no class", "one name twice"],
)
def test_a_kind_that_is_at_fault_is_named(
    tmp_path: Path, door: list[Any], more: Iterable[Any], named: str
) -> None:
    door[:] = [*more, *door[-1:]]
    (tmp_path / "sums.constant").write_text("[]")
    with pytest.raises(StartError, match=named):
        answers(tmp_path, tmp_path)


def test_with_the_core_alone_a_task_and_a_script_are_told_what_serves_them(
    tmp_path: Path, door: list[Any]
) -> None:
    door.clear()
    model = tmp_path / "model" / "words"
    model.mkdir(parents=True)
    (model / "task.json").write_text(TASK)
    with pytest.raises(StartError, match=r"words/task\.json.*pip install 'trireme-serving\[extensions\]'"):
        list(discover_in_models(model.parent, ()))
    (model / "task.json").unlink()
    (tmp_path / "inference.py").write_text(SCRIPT)
    with pytest.raises(StartError, match=r"pip install 'trireme-serving\[extensions\]'"):
        answers(tmp_path, model.parent)
    with pytest.raises(StartError, match="'script'"):
        _ = ClientSource("model", tmp_path / "inference.py", "script").row


def test_a_client_that_says_so_answers_requests_that_name_no_model(tmp_path: Path) -> None:
    write_client(tmp_path, "other", words="WORD = 1")
    text = "from sm.client import Client\nclass One(Client):\n    answers_unnamed = True\n    def inference(self, payload): ..."
    write_client(tmp_path, "chosen", text)
    models = models_of(find_clients((tmp_path,), EmptyTriton(), tmp_path).clients)
    assert models.default("") == "chosen"
