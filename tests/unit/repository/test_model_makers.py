"""A start asks the makers of models in their order, and says what installs them where there are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sm import entry_points
from sm.errors import StartError
from sm.repository import model_makers
from sm.repository.model_makers import ModelMaker, RepositorySource, main, make
from sm.settings import Settings

ASKED: RepositorySource = RepositorySource(Path("owner/name"), "HF_MODEL_ID")


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[ModelMaker]:
    """The rows of the door."""
    found: list[ModelMaker] = []
    monkeypatch.setattr(entry_points, "load", lambda _: tuple(found))
    monkeypatch.setenv("TRIREME_CACHE", str(tmp_path))
    return found


def maker(said: str | None) -> Callable[..., Any]:
    def make(source: RepositorySource, settings: Settings, machine: object, repository: Path) -> str | None:
        assert not repository.exists()
        if said is not None:
            repository.mkdir(parents=True)
        return said

    return make


def test_the_first_maker_that_knows_the_form_makes_the_repository_anew(
    rows: list[ModelMaker], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows += [ModelMaker(), ModelMaker(maker(None)), ModelMaker(maker("read")), ModelMaker(maker("never"))]
    for _ in range(2):
        repository, said = make(Settings.read({"TRIREME_CACHE": str(tmp_path)}), ASKED)
        assert (repository.is_dir(), said) == (True, "read")
    assert main(["make", *map(str, ASKED)]) == 0
    assert json.loads(capsys.readouterr().out) == [str(repository), "read"]


@pytest.mark.parametrize("words", [("make", "owner/name", "HF_MODEL_ID"), ("rebuild", "/m/1", "/o", "/t")])
def test_without_a_maker_one_line_says_what_installs_them(
    rows: list[ModelMaker], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    rows.append(ModelMaker(maker(None)))  # of another form, and of no plans
    assert main(words) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert entry_points.INSTALL_EXTENSIONS in line


def test_a_plan_is_built_by_the_maker_that_can(rows: list[ModelMaker]) -> None:
    built: list[tuple[Path, ...]] = []
    rows += [ModelMaker(), ModelMaker(rebuild=lambda *paths: built.append(paths))]
    assert main(["rebuild", "/m/1", "/o", "/t"]) == 0
    assert built == [(Path("/m/1"), Path("/o"), Path("/t"))]

    def fail(*_: Path) -> None:
        raise StartError("there is no GPU")

    rows[1] = ModelMaker(rebuild=fail)
    assert model_makers.main(["rebuild", "/m/1", "/o", "/t"]) == 1
