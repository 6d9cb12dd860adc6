"""What counts as a new version, and which are replaced. Triton's side is in tests/integration."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sm.errors import BadInput, Conflict
from sm.multimodel.load_records import Record, Records
from sm.multimodel.versions import UNCHANGED, Versions, current_index, digest
from sm.run_state import Box
from tests.support.model_archives import chain_config, multiplying_model


class NotingLoader:
    """A loader that notes what is loaded beside. No Triton."""

    def __init__(self, records: Records) -> None:
        self.records, self.loads, self.failure = records, list[str](), ""
        self.entered, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()

    def load_beside(self, name: str, _: Path, version: str, *__: object) -> Record:
        self.loads.append(name)
        self.entered.set()
        self.may_end.wait(10)
        if self.failure:
            raise BadInput(self.failure)
        old, new = (
            self.records.read().records[name],
            Record(name, "", "new", "", {}, version=version, loaded=True),
        )
        self.records.change((new, Record(f"{name}@{old.id}", "", old.id, "", {}, loaded=True)))
        return new


@pytest.fixture
def make(tmp_path: Path) -> Callable[[], tuple[Versions, NotingLoader]]:
    def make() -> tuple[Versions, NotingLoader]:
        box = Box("id", tmp_path, tmp_path / "repository", 1, 2, 3, "nginx", 0, has_versions=True)
        loader = NotingLoader(Records(box.models_file))
        return Versions(loader, box, lambda: box.repository, 3600, 1), loader  # type: ignore[arg-type]

    for name in ("cats", "dogs"):
        multiplying_model().write(tmp_path / "repository" / name)
    return make


def change(tmp_path: Path, name: str = "cats") -> None:
    (tmp_path / "repository" / name / "1" / "weights").write_text(f"{name} of another size")


def test_a_look_replaces_what_has_changed_once_two_looks_see_the_same(
    make: Callable[[], tuple[Versions, NotingLoader]], tmp_path: Path
) -> None:
    versions, loader = make()
    versions.look()
    change(tmp_path)
    versions.look()
    assert loader.loads == []
    versions.look()
    versions.look()
    assert loader.loads == ["cats"]


def test_what_failed_is_tried_again_when_it_changes_or_somebody_asks(
    make: Callable[[], tuple[Versions, NotingLoader]], tmp_path: Path
) -> None:
    versions, loader = make()
    change(tmp_path)
    loader.failure = "it has no weights"
    for _ in range(4):
        versions.look()
    assert (loader.loads, versions.failures) == (["cats"], {"cats": "it has no weights"})
    with pytest.raises(BadInput, match="no weights"):
        versions.update("cats")
    loader.failure = ""
    assert versions.update("cats") == "serves"
    assert (versions.update("cats"), versions.failures) == (UNCHANGED, {})


def test_only_one_version_is_loaded_at_a_time(
    make: Callable[[], tuple[Versions, NotingLoader]], tmp_path: Path
) -> None:
    versions, loader = make()
    change(tmp_path)
    loader.may_end.clear()
    thread = threading.Thread(target=versions.update, args=("cats",))
    thread.start()
    loader.entered.wait(10)
    with pytest.raises(Conflict):
        versions.update("dogs")
    loader.may_end.set()
    thread.join()


def test_a_step_of_an_ensemble_cannot_be_replaced_alone(
    make: Callable[[], tuple[Versions, NotingLoader]], tmp_path: Path
) -> None:
    (tmp_path / "repository" / "all").mkdir()
    (tmp_path / "repository" / "all" / "config.pbtxt").write_text(chain_config("cats", "dogs"))
    versions, loader = make()
    change(tmp_path)
    with pytest.raises(BadInput, match="step of the ensemble 'all'"):
        versions.update("cats")
    assert loader.loads == []


def test_a_change_of_a_client_is_a_new_version_too(tmp_path: Path) -> None:
    multiplying_model().write(tmp_path / "cats")
    before = digest(tmp_path, "cats")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "cats.py").write_text("# a client")
    assert digest(tmp_path, "cats") != before


def test_callers_see_the_current_version_under_its_own_name() -> None:
    records = {
        "cats": Record("cats", "", "2", "cats-2", {"cats": "cats-2"}, loaded=True),
        "cats@1": Record("cats@1", "", "1", "cats", {"cats": "cats"}, loaded=True),
    }
    index = [{"name": "cats", "state": "READY"}, {"name": "cats-2", "state": "LOADING"}, {"name": "cats-0"}]
    assert current_index(records, index) == [{"name": "cats", "state": "LOADING"}]
