"""Loading archives: what a failure leaves behind, and who waits for whom; a caller's view is in tests/integration."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from sm.errors import BadInput, Conflict, DeadlinePassed, NotReady, OutOfMemory, UnknownModel
from sm.models.load_records import LoadRecord, LoadRecords, State
from sm.models.memory_room import MemoryRoom
from sm.models.model_loader import ModelLoader, plain
from sm.models.staging import Staging
from tests.support.boxes import wait_until
from tests.support.model_archives import ArchiveFolder, chain_config, multiplying_model
from tests.support.noted_control import RecordingControl

ENSEMBLE = {"pre": multiplying_model(), "all": chain_config("pre")}


class PlayedLoader(ModelLoader):
    """A loader that has all it needs but a Triton, which is played."""

    def __init__(
        self, folder: Path, room: MemoryRoom | None = None, triton: RecordingControl | None = None
    ) -> None:
        self.triton = triton or RecordingControl()
        self.archives, self.folder = ArchiveFolder(folder / "archives"), folder / "repository"
        self.folder.mkdir(exist_ok=True)
        staging, records = Staging(self.folder, folder / "views"), LoadRecords(folder / "models.json")
        super().__init__(records, staging, self.triton, home=self.archives.home, room=room)

    def load_ensemble(self) -> LoadRecord:
        return self.load("one", self.archives.write_nested("one", ENSEMBLE))

    def load_model(self, name: str = "one", factor: float = 1) -> LoadRecord:
        return self.load(name, self.archives.write_flat(name, multiplying_model(factor)))

    def left(self) -> tuple[list[str], list[str]]:
        """Return what is left in Triton's repository, and which models are recorded as served."""
        return sorted(path.name for path in self.folder.iterdir()), sorted(self.records.read().serving)


@pytest.fixture
def loader(tmp_path: Path) -> PlayedLoader:
    return PlayedLoader(tmp_path)


def test_unloading_starts_with_the_entry_and_leaves_nothing(loader: PlayedLoader) -> None:
    loader.load_ensemble()
    loader.triton.calls.clear()
    loader.unload("one")
    assert loader.triton.calls == ["unload one", "unload pre"]
    assert (loader.left(), dict(loader.records.read().records)) == (([], []), {})
    with pytest.raises(UnknownModel):
        loader.unload("one")


@pytest.mark.parametrize("error", [BadInput("no"), NotReady("gone"), OutOfMemory("full")], ids=repr)
def test_a_failed_load_leaves_nothing(loader: PlayedLoader, error: Exception) -> None:
    loader.triton.failing = error
    with pytest.raises(type(error)):
        loader.load_ensemble()
    assert (loader.left(), dict(loader.records.read().records)) == (([], []), {})


def test_a_load_that_ended_well_while_a_process_was_killed_for_memory_is_undone(tmp_path: Path) -> None:
    kills = iter((0, 1))
    loader = PlayedLoader(tmp_path, MemoryRoom(kills=lambda: next(kills)))
    with pytest.raises(OutOfMemory):
        loader.load_model()
    assert loader.triton.calls == ["load one", "unload one"]
    assert dict(loader.records.read().records) == {}


def test_a_model_for_whose_reload_there_is_no_room_is_unloaded(tmp_path: Path) -> None:
    free = [2**30]
    loader = PlayedLoader(tmp_path, MemoryRoom(lambda: free[0], lambda: 2**30))
    loader.load_model()
    free[0] = 0
    with pytest.raises(OutOfMemory):
        loader.reload("one")
    assert (loader.triton.calls, loader.left()) == (["load one", "unload one"], ([], []))


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_model_that_triton_lost_is_loaded_from_its_folder_or_unloaded_with_it(
    loader: PlayedLoader, is_gone: bool
) -> None:
    loader.load_model()
    loader.triton.model_states = {}
    assert loader.lost() == ["one"]
    loader.triton.calls.clear()
    if is_gone:
        shutil.rmtree(loader.archives.home)
    with pytest.raises(UnknownModel) if is_gone else nullcontext():
        loader.reload("one")
    assert loader.triton.calls == ["unload one" if is_gone else "load one"]
    assert loader.left() == ([], []) if is_gone else (["one"], ["one"])


def test_unloading_does_not_wait_for_a_reload(loader: PlayedLoader) -> None:
    loader.triton.release_slow_load.set()
    loader.load_model("slow")
    loader.triton.release_slow_load.clear()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(loader.reload, "slow")
        wait_until(lambda: loader.triton.calls.count("load slow") == 2, description="the reload")
        loader.unload("slow")
        loader.reap()
        assert loader.left() == (["slow"], []), "Triton waits for ever for files that are gone"
        loader.triton.model_states = {"slow": "READY"}
        loader.triton.release_slow_load.set()
    loader.reap()
    assert (loader.triton.calls[-1], loader.left()) == ("unload slow", ([], []))


def test_a_second_unload_waits_for_the_first_and_finds_nothing(loader: PlayedLoader) -> None:
    begun, may_end = threading.Event(), threading.Event()
    loader.load_model()

    def unload(model: str) -> None:
        begun.set()
        may_end.wait(10)

    loader.triton.unload = unload  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(loader.unload, "one")
        begun.wait(10)
        threading.Timer(0.1, may_end.set).start()
        with pytest.raises(UnknownModel):
            loader.unload("one")


def test_an_unload_while_triton_does_not_answer_changes_nothing(loader: PlayedLoader) -> None:
    record = loader.load_model()
    loader.triton.failing = NotReady("Triton is not there")
    with pytest.raises(NotReady):
        loader.unload("one")
    assert loader.records.read().serving["one"] == record
    assert loader.left() == (["one"], ["one"])


def test_a_model_that_triton_lost_may_be_loaded_again(loader: PlayedLoader) -> None:
    loader.load_model()
    with pytest.raises(Conflict):
        loader.load_model()
    loader.triton.unready_models = ("one",)
    loader.triton.calls.clear()
    loader.load_model()
    assert loader.triton.calls == ["unload one", "load one"]


def test_a_new_load_replaces_a_half_done_one(loader: PlayedLoader) -> None:
    loader.records.put(replace(loader.load_ensemble(), state=State.CHANGING))
    assert loader.load_model(factor=2).models == {"model": "one"}
    assert loader.left() == (["one"], ["one"])


class HangingTriton(RecordingControl):
    """A load that does not end."""

    def load(self, model: str, parts: Collection[str] = (), seconds: float | None = None) -> None:
        super().load(model)
        self.model_states[model] = "LOADING"
        raise DeadlinePassed("it takes too long")


def test_a_model_that_is_loaded_after_its_deadline_is_unloaded_and_removed(tmp_path: Path) -> None:
    loader = PlayedLoader(tmp_path, triton=HangingTriton())
    with pytest.raises(DeadlinePassed):
        loader.load_model("hangs")
    assert loader.triton.calls == ["load hangs"], "Triton would wait for the load"
    loader.triton.model_states["hangs"] = "READY"
    loader.reap()
    assert (loader.triton.calls, loader.left()) == (["load hangs", "unload hangs"], ([], []))


def test_the_next_control_plane_removes_a_load_for_which_nobody_waited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loader = PlayedLoader(tmp_path, triton=HangingTriton())
    with pytest.raises(DeadlinePassed):
        loader.load_model("hangs")
    next_loader = PlayedLoader(tmp_path, triton=loader.triton)
    next_loader.reap()
    assert next_loader.left() == (["hangs"], []), "Triton waits for ever for files that are gone"
    assert not caplog.records
    loader.triton.model_states["hangs"] = "READY"
    next_loader.reap()
    assert (loader.triton.calls[-1], next_loader.left()) == ("unload hangs", ([], []))
    assert [(row.levelname, vars(row)["model"]) for row in caplog.records] == [("WARNING", "hangs")]


def test_a_load_that_its_process_did_not_end_is_removed_and_one_under_way_is_not(
    loader: PlayedLoader,
) -> None:
    loader.records.put(replace(loader.load_ensemble(), state=State.CHANGING))
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(loader.load_model, "slow")
        wait_until(lambda: "load slow" in loader.triton.calls, description="the load")
        loader.reap()
        assert loader.left() == (["slow"], [])
        loader.triton.release_slow_load.set()
        slow.result(10)
    assert loader.left() == (["slow"], ["slow"])


@pytest.mark.parametrize("turn", [1, -1])
def test_a_name_that_is_anothers_target_model_is_refused(loader: PlayedLoader, turn: int) -> None:
    """Callers of one model would get the other's answers."""
    url = loader.archives.write_flat("hash")
    loads = [("one", url, "cats.tar.gz"), ("cats.tar.gz", url, "dogs.tar.gz")][::turn]
    first = loader.load(*loads[0])
    with pytest.raises(Conflict):
        loader.load(*loads[1])
    assert loader.records.read().serving["cats.tar.gz"] == first


@pytest.mark.parametrize("file", ["config.pbtxt", "1/model.py", "code/client.py", "code/inference.py"])
def test_a_pipe_in_an_archive_is_refused_before_anything_is_read(loader: PlayedLoader, file: str) -> None:
    """Whoever opened it would hang."""
    url = Path(loader.archives.write_flat("odd", None, helper=""))
    (url / file).unlink(missing_ok=True)
    os.mkfifo(url / file)
    with pytest.raises(BadInput, match=file):
        loader.load("odd", str(url))
    assert (loader.triton.calls, dict(loader.records.read().records)) == ([], {})


def test_a_file_that_is_gone_when_it_is_copied_is_a_400(
    loader: PlayedLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton would wait for ever for a model.py that is not there."""
    url, copy = loader.archives.write_flat("moving"), shutil.copy2

    def move_away_first(source: Path, target: Path) -> None:
        if source.name == "model.py":
            source.unlink()
        copy(source, target)

    monkeypatch.setattr(shutil, "copy2", move_away_first)
    with pytest.raises(BadInput, match=r"model\.py"):
        loader.load("moving", url)
    assert (loader.triton.calls, loader.left()) == ([], ([], []))


@pytest.mark.parametrize("kind", ["gone", "file", "loop"])
def test_an_archive_replaced_while_it_is_read_is_a_400(
    loader: PlayedLoader, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = loader.archives.write_nested("one", ENSEMBLE)
    original, folder = Staging.copy, Path(url)

    def replace_first(self: Staging, source: Path, record_id: str, name: str) -> Path:
        shutil.rmtree(folder)
        if kind == "file":
            folder.write_text("")
        elif kind == "loop":
            folder.symlink_to(folder)
        return original(self, source, record_id, name)

    monkeypatch.setattr(Staging, "copy", replace_first)
    with pytest.raises(BadInput):
        loader.load("one", url)
    assert (loader.left(), dict(loader.records.read().records)) == (([], []), {})


def test_a_targets_name_becomes_a_safe_folder_name_of_its_own() -> None:
    names = ["a/b.tar.gz", "a-b.tar.gz/", "..", "\u00fc", "x" * 300, "x" * 301]
    assert re.fullmatch(r"a-b-tar-gz-[0-9a-f]{8}", plain(names[0]))
    assert len({plain(name) for name in names}) == len(names)
    assert all(len(plain(name)) <= 200 for name in names)
