"""What counts as a new version, and which are replaced. Triton's side is in tests/integration."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sm import hardware
from sm.control import app
from sm.errors import BadInput, Conflict, NotReady
from sm.models import versions as versions_module
from sm.models.canary import Canary
from sm.models.load_records import LoadRecord, LoadRecords, State
from sm.models.model_loader import ModelLoader
from sm.models.versions import UNCHANGED, UNDECIDED, Versions, current_index
from sm.polling import POLL_S
from sm.repository.models import digest, names
from sm.run_state import Box
from sm.settings import Settings
from tests.support.boxes import wait_until
from tests.support.model_archives import chain_config, multiplying_model


class NotingLoader:
    """A loader that notes what is loaded beside. No Triton."""

    take_over, unload_idle = ModelLoader.take_over, ModelLoader.unload_idle

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
        record = LoadRecord(name, "", f"new-{len(self.loads)}", "", {}, version=version).beside(State.STAGED)
        self.records.put(record)
        return record

    def unload(self, name: str) -> None:
        self.records.remove(name)


class PlayedVersions(Versions):
    """The versions of a repository with two models."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "repository"
        for name in ("cats", "dogs"):
            multiplying_model().write(self.folder / name)
        first = {name: (name, digest(self.folder, name)) for name in names(self.folder)}
        box = Box("id", folder, self.folder, 1, 2, 3, "nginx", 0, has_versions=True, first_versions=first)
        box.leases_folder.mkdir(exist_ok=True)
        self.played = NotingLoader(LoadRecords(box.models_file))
        verdict = {"verdict": UNDECIDED, "reason": "so"}
        parts: Any = self.played, box, lambda: self.folder, 3600, 5, lambda *_: ({}, verdict)
        self.parts = parts
        super().__init__(*parts)

    def change(self, weights: str = "another size") -> None:
        (self.folder / "cats" / "1" / "weights").write_text(weights)


@pytest.fixture
def versions(tmp_path: Path) -> PlayedVersions:
    return PlayedVersions(tmp_path)


def test_a_look_replaces_what_has_changed_once_two_looks_see_the_same(versions: PlayedVersions) -> None:
    versions.look()
    versions.change()
    versions.look()
    assert versions.played.loads == []
    versions.look()
    versions.look()
    assert versions.played.loads == ["cats"]


@pytest.mark.parametrize(("seconds", "polls"), [("0", []), ("7", [7])])
def test_the_control_plane_looks_every_so_many_seconds_if_there_are_any(
    versions: PlayedVersions, monkeypatch: pytest.MonkeyPatch, seconds: str, polls: list[float]
) -> None:
    versions.change()
    loader, box, *_ = versions.parts
    poll = Mock()
    monkeypatch.setattr(app, "build_loader", lambda *_: loader)
    monkeypatch.setattr(app, "Poll", poll)
    app.build_versions(
        Settings.read({"TRIREME_MODEL_POLL": seconds}), replace(box, source=str(versions.folder)), Mock()
    )
    assert [call.args[1] for call in poll.call_args_list] == polls
    assert poll.return_value.start.call_count == len(polls)
    for call in poll.call_args_list:
        for _ in range(3):
            call.args[2]()
    assert versions.played.loads == ["cats"] * len(polls)


def test_what_failed_is_tried_again_when_it_changes_or_somebody_asks(versions: PlayedVersions) -> None:
    versions.change()
    versions.played.failure = "it has no weights"
    for _ in range(4):
        versions.look()
    assert (versions.played.loads, versions.failures) == (["cats"], {"cats": "it has no weights"})
    with pytest.raises(BadInput):
        versions.update("cats")
    versions.played.failure = ""
    assert versions.update("cats") == "serves"
    assert (versions.update("cats"), versions.failures) == (UNCHANGED, {})


def test_a_source_that_is_away_leaves_the_old_version_serving(versions: PlayedVersions) -> None:
    def fail() -> Path:
        raise NotReady("the source is away")

    loader, box, _, *others = versions.parts
    away = Versions(loader, box, fail, *others)
    away.look()
    assert away.failures == {}
    with pytest.raises(NotReady):
        away.update("cats")
    assert (away.failures, versions.played.loads) == ({"cats": "the source is away"}, [])


@pytest.mark.parametrize("state", [State.STAGED, State.RETIRED])
def test_the_next_control_plane_unloads_a_version_that_does_not_serve(
    versions: PlayedVersions, state: State
) -> None:
    loader, box, fetch, _, *others = versions.parts
    loader.records.put(LoadRecord("cats", "", "half", "", {}, version="2").beside(state))
    Versions(loader, box, fetch, 0, *others)
    wait_until(lambda: loader.records.read().records.keys() == {"cats", "dogs"}, description="the unload")
    assert loader.records.read().serving["cats"].id == "first-cats"


def test_an_old_version_is_unloaded_even_if_a_try_fails(
    versions: PlayedVersions, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder of the leases is gone; on a full disk no file can be made in it."""
    loader, box, fetch, _, *others = versions.parts
    box.leases_folder.rmdir()
    loader.records.put(LoadRecord("cats", "", "old", "", {}, version="2").beside(State.RETIRED))
    Versions(loader, box, fetch, 0, *others)
    wait_until(lambda: caplog.records, description="the failure")
    box.leases_folder.mkdir()
    wait_until(lambda: loader.records.read().records.keys() == {"cats", "dogs"}, description="the unload")


def test_only_one_version_is_loaded_at_a_time(
    versions: PlayedVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions_module, "PUSH_PATIENCE_S", 0.1)
    versions.change()
    versions.played.may_end.clear()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(versions.update, "cats")
        versions.played.entered.wait(10)
        with pytest.raises(Conflict):
            versions.update("dogs")
        versions.played.may_end.set()


def test_a_step_of_an_ensemble_cannot_be_replaced_alone(versions: PlayedVersions) -> None:
    (versions.folder / "all").mkdir()
    (versions.folder / "all" / "config.pbtxt").write_text(chain_config("cats", "dogs"))
    versions.change()
    with pytest.raises(BadInput, match="'all'"):
        versions.update("cats")
    assert versions.played.loads == []


def test_callers_see_the_current_version_under_its_own_name() -> None:
    records = {
        "cats": LoadRecord("cats", "", "2", "cats-2", {"cats": "cats-2"}, state=State.SERVES),
        "cats@1": LoadRecord("cats", "", "1", "cats", {"cats": "cats"}).beside(State.RETIRED),
    }
    index = [{"name": "cats", "state": "READY"}, {"name": "cats-2", "state": "LOADING"}, {"name": "cats-0"}]
    assert current_index(records, index) == [{"name": "cats", "state": "LOADING"}]


def test_a_half_written_answer_is_not_read(
    versions: PlayedVersions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions.change()
    versions.update("cats")
    monkeypatch.setattr(hardware, "children", lambda _: {7})
    (tmp_path / "state.json").write_text(json.dumps({"processes": {"data": {"pid": 1}}}))
    folder = tmp_path / "prepared" / "new"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(versions.played.prepare, LoadRecord("cats@new", "", "new", "", {}))
        wait_until(folder.is_dir, description="the folder of the answers")
        (folder / "7.1").write_text("half a sent")
        time.sleep(3 * POLL_S)
        assert not waiting.done()
        (folder / "7.1").write_text("")
        (folder / "7.1").rename(folder / "7")
        waiting.result(10)


def test_a_canary_leaves_the_old_version_serving_until_it_is_promoted(versions: PlayedVersions) -> None:
    with pytest.raises(Conflict):
        versions.promote("cats")
    versions.change()
    assert versions.update("cats", Canary(10, False, 0.0)) == "canary"
    snapshot = versions.played.records.read()
    assert (snapshot.records["cats"].id, snapshot.canaries["cats"].id) == ("first-cats", "new-1")
    described = versions.describe("cats")
    assert (described["version_id"], described["canary"]["version_id"]) == ("first-cats", "new-1")
    with pytest.raises(Conflict):
        versions.update("cats")
    versions.promote("cats")
    snapshot = versions.played.records.read()
    assert (snapshot.records["cats"].id, dict(snapshot.canaries)) == ("new-1", {})
    with pytest.raises(Conflict):
        versions.roll_back("cats", "no")


def test_a_canary_that_nothing_compares_is_refused_and_names_what_does(versions: PlayedVersions) -> None:
    core_alone = Versions(*versions.parts[:-1])
    versions.change()
    with pytest.raises(BadInput, match="extensions"):
        core_alone.update("cats", Canary(10, False, 0.0))
    assert versions.played.loads == []
    assert core_alone.update("cats") == "serves"


def test_a_caller_cannot_choose_ids_that_a_canary_gets(versions: PlayedVersions) -> None:
    """Whoever knows the code, or the share that an earlier canary took, knows nothing of the next one."""
    ids, found = [str(number) for number in range(400)], []
    for weights in ("the first", "the second one"):
        versions.change(weights)
        versions.update("cats", Canary(50, False, 0.0))
        read = [
            LoadRecords(versions.folder.parent / "models.json").read().canaries["cats"].canary
            for _ in range(2)
        ]
        assert read[0] is not None
        assert read[0] == read[1]  # each worker reads the file, and so does a new one
        assert len(read[0].salt) >= 32
        found.append({identity for identity in ids if read[0].takes(identity)})
        versions.roll_back("cats", "no")
    chosen = {identity for identity in ids if Canary(50, False, 0.0).takes(identity)}
    for one, other in ((chosen, found[0]), (chosen, found[1]), (found[0], found[1])):
        assert 0.3 < len(one & other) / len(one) < 0.7


def test_polling_waits_for_the_end_of_a_canary_and_does_not_take_what_was_rolled_back(
    versions: PlayedVersions,
) -> None:
    def poll(polling: Versions) -> tuple[int, bool]:
        """Look until a change would have been taken; return the number of loads, and if one is refused."""
        for _ in range(2):
            polling.look()
        return len(versions.played.loads), "cats" in polling.failures

    versions.change()
    versions.update("cats", Canary(10, False, 0.0))
    versions.change("a newer version")
    assert poll(versions) == (1, True)
    versions.promote("cats")
    assert poll(versions) == (2, False)
    versions.change("a bad version")
    versions.update("cats", Canary(10, False, 0.0))
    versions.roll_back("cats", "no")
    for polling in (versions, Versions(*versions.parts)):  # also that of the next control plane
        assert poll(polling) == (3, True)
    versions.change("the next version")
    assert poll(versions) == (4, False)
