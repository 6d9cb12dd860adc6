"""What counts as a new version, and which are replaced. Triton's side is in tests/integration."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sm import hardware
from sm.errors import BadInput, Conflict
from sm.models import versions as versions_module
from sm.models.canary import Canary
from sm.models.load_records import LoadRecord, LoadRecords, State
from sm.models.model_loader import Loader
from sm.models.versions import UNCHANGED, UNDECIDED, Versions, current_index
from sm.polling import POLL_S
from sm.repository.models import digest, names
from sm.run_state import Box
from tests.support.boxes import wait_until
from tests.support.model_archives import chain_config, multiplying_model


class NotingLoader:
    """A loader that notes what is loaded beside. No Triton."""

    def __init__(self, records: LoadRecords) -> None:
        self.records, self.loads, self.failure = records, list[str](), ""
        self.entered, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()

    def load_beside(self, name: str, _: Path, version: str, __: Path, prepare: Any) -> LoadRecord:
        self.prepare = prepare
        self.loads.append(name)
        self.entered.set()
        self.may_end.wait(10)
        if self.failure:
            raise BadInput(self.failure)
        record = LoadRecord(name, "", "new", "", {}, version=version).beside(State.STAGED)
        self.records.put(record)
        return record

    def unload(self, name: str) -> None:
        self.records.remove(name)

    take_over, unload_idle = Loader.take_over, Loader.unload_idle


def make(folder: Path) -> tuple[Versions, NotingLoader]:
    """Return the versions of a repository with two models."""
    repository = folder / "repository"
    for name in ("cats", "dogs"):
        multiplying_model().write(repository / name)
    first = {name: (name, digest(repository, name)) for name in names(repository)}
    box = Box("id", folder, repository, 1, 2, 3, "nginx", 0, has_versions=True, first_versions=first)
    loader = NotingLoader(LoadRecords(box.models_file))
    verdict = {"verdict": UNDECIDED, "reason": "so"}
    parts: Any = loader, box, lambda: repository, 3600, 5, lambda _: {}, lambda *_: verdict
    return Versions(*parts), loader


def change(tmp_path: Path) -> None:
    (tmp_path / "repository" / "cats" / "1" / "weights").write_text("another size")


def test_a_look_replaces_what_has_changed_once_two_looks_see_the_same(tmp_path: Path) -> None:
    versions, loader = make(tmp_path)
    versions.look()
    change(tmp_path)
    versions.look()
    assert loader.loads == []
    versions.look()
    versions.look()
    assert loader.loads == ["cats"]


def test_what_failed_is_tried_again_when_it_changes_or_somebody_asks(tmp_path: Path) -> None:
    versions, loader = make(tmp_path)
    change(tmp_path)
    loader.failure = "it has no weights"
    for _ in range(4):
        versions.look()
    assert (loader.loads, versions.failures) == (["cats"], {"cats": "it has no weights"})
    with pytest.raises(BadInput):
        versions.update("cats")
    loader.failure = ""
    assert versions.update("cats") == "serves"
    assert (versions.update("cats"), versions.failures) == (UNCHANGED, {})


def test_only_one_version_is_loaded_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions_module, "PUSH_PATIENCE_S", 0.1)
    versions, loader = make(tmp_path)
    change(tmp_path)
    loader.may_end.clear()
    thread = threading.Thread(target=versions.update, args=("cats",))
    thread.start()
    loader.entered.wait(10)
    with pytest.raises(Conflict):
        versions.update("dogs")
    loader.may_end.set()
    thread.join()


def test_a_step_of_an_ensemble_cannot_be_replaced_alone(tmp_path: Path) -> None:
    (tmp_path / "repository" / "all").mkdir(parents=True)
    (tmp_path / "repository" / "all" / "config.pbtxt").write_text(chain_config("cats", "dogs"))
    versions, loader = make(tmp_path)
    change(tmp_path)
    with pytest.raises(BadInput, match="'all'"):
        versions.update("cats")
    assert loader.loads == []


def test_callers_see_the_current_version_under_its_own_name() -> None:
    records = {
        "cats": LoadRecord("cats", "", "2", "cats-2", {"cats": "cats-2"}, state=State.SERVES),
        "cats@1": LoadRecord("cats", "", "1", "cats", {"cats": "cats"}).beside(State.RETIRED),
    }
    index = [{"name": "cats", "state": "READY"}, {"name": "cats-2", "state": "LOADING"}, {"name": "cats-0"}]
    assert current_index(records, index) == [{"name": "cats", "state": "LOADING"}]


def test_a_half_written_answer_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions, loader = make(tmp_path)
    change(tmp_path)
    versions.update("cats")
    monkeypatch.setattr(hardware, "children", lambda _: {7})
    (tmp_path / "state.json").write_text(json.dumps({"processes": {"data": {"pid": 1}}}))
    folder = tmp_path / "prepared" / "new"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(loader.prepare, LoadRecord("cats@new", "", "new", "", {}))
        wait_until(folder.is_dir, description="the folder of the answers")
        (folder / "7.1").write_text("half a sent")
        time.sleep(3 * POLL_S)
        assert not waiting.done()
        (folder / "7.1").write_text("")
        (folder / "7.1").rename(folder / "7")
        waiting.result(10)


TENTH = Canary(10, False, 0.0)


def test_a_canary_leaves_the_old_version_serving_until_it_is_promoted(tmp_path: Path) -> None:
    versions, loader = make(tmp_path)
    with pytest.raises(Conflict):
        versions.promote("cats")
    change(tmp_path)
    assert versions.update("cats", TENTH) == "canary"
    snapshot = loader.records.read()
    assert (snapshot.records["cats"].id, snapshot.canaries["cats"].id) == ("first-cats", "new")
    described = versions.describe("cats")
    assert (described["version_id"], described["canary"]["version_id"]) == ("first-cats", "new")
    with pytest.raises(Conflict):
        versions.update("cats")
    versions.promote("cats")
    snapshot = loader.records.read()
    assert (snapshot.records["cats"].id, dict(snapshot.canaries)) == ("new", {})
    with pytest.raises(Conflict):
        versions.roll_back("cats", "no")
