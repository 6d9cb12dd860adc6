"""Loading archives: what a failure leaves behind, and who waits for whom; a caller's view is in tests/integration."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from sm.errors import BadInput, Conflict, DeadlinePassed, NotReady, OutOfMemory, UnknownModel
from sm.models.load_records import LoadRecord, LoadRecords, State
from sm.models.memory_room import MemoryRoom
from sm.models.model_loader import Loader, plain
from sm.models.staging import Staging
from tests.support.boxes import wait_until
from tests.support.model_archives import ArchiveFolder, chain_config, multiplying_model
from tests.support.noted_control import RecordingControl


class LoaderSetup:
    """Everything that a loader needs, and the state that it leaves."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.triton = folder, RecordingControl()
        self.platform = ArchiveFolder(folder / "archives")
        self.repository = folder / "repository"
        self.repository.mkdir()
        self.records = LoadRecords(folder / "models.json")

    def loader(self, room: MemoryRoom | None = None) -> Loader:
        staging = Staging(self.repository, self.folder / "views")
        return Loader(self.records, staging, self.triton, home=self.platform.home, room=room)

    def staged(self) -> list[str]:
        return sorted(path.name for path in self.repository.iterdir())

    def left(self) -> tuple[list[str], dict[str, LoadRecord]]:
        """What is left in Triton's repository and in the records; nothing of a load that failed."""
        return self.staged(), dict(self.records.read().records)


@pytest.fixture
def setup(tmp_path: Path) -> LoaderSetup:
    return LoaderSetup(tmp_path)


ENSEMBLE = {"pre": multiplying_model(), "all": chain_config("pre")}


def test_unloading_starts_with_the_entry_and_leaves_nothing(setup: LoaderSetup) -> None:
    loader = setup.loader()
    loader.load("one", setup.platform.write_nested("one", ENSEMBLE))
    setup.triton.calls.clear()
    loader.unload("one")
    assert setup.triton.calls == ["unload one", "unload pre"]
    assert setup.left() == ([], {})
    with pytest.raises(UnknownModel):
        loader.unload("one")


@pytest.mark.parametrize("error", [BadInput("no"), NotReady("gone"), OutOfMemory("full")], ids=repr)
def test_a_failed_load_leaves_nothing(setup: LoaderSetup, error: Exception) -> None:
    setup.triton.failing = error
    with pytest.raises(type(error)):
        setup.loader().load("one", setup.platform.write_nested("one", ENSEMBLE))
    assert setup.left() == ([], {})


def test_a_load_that_ended_well_while_a_process_was_killed_for_memory_is_undone(setup: LoaderSetup) -> None:
    kills = iter((0, 1))
    loader = setup.loader(room=MemoryRoom(kills=lambda: next(kills)))
    with pytest.raises(OutOfMemory):
        loader.load("one", setup.platform.write_flat("one"))
    assert setup.triton.calls == ["load one", "unload one"]
    assert dict(setup.records.read().records) == {}


def test_unloading_does_not_wait_for_a_reload(setup: LoaderSetup) -> None:
    loader = setup.loader()
    setup.triton.release_slow_load.set()
    loader.load("slow", setup.platform.write_flat("slow"))
    setup.triton.release_slow_load.clear()
    reload = threading.Thread(target=loader.reload, args=("slow",))
    reload.start()
    wait_until(lambda: setup.triton.calls.count("load slow") == 2, description="the reload")
    loader.unload("slow")
    assert "slow" not in setup.records.read().serving
    loader.reap()
    assert setup.staged() == ["slow"], "Triton waits for ever for files that are gone"
    setup.triton.model_states = {"slow": "READY"}
    setup.triton.release_slow_load.set()
    reload.join()
    loader.reap()
    assert (setup.triton.calls[-1], setup.staged()) == ("unload slow", [])


def test_a_second_unload_waits_for_the_first_and_finds_nothing(setup: LoaderSetup) -> None:
    loader, begun, may_end = setup.loader(), threading.Event(), threading.Event()
    loader.load("one", setup.platform.write_flat("one"))

    def unload(model: str) -> None:
        begun.set()
        may_end.wait(10)

    setup.triton.unload = unload  # type: ignore[method-assign]
    first = threading.Thread(target=loader.unload, args=("one",))
    first.start()
    begun.wait(10)
    threading.Timer(0.1, may_end.set).start()
    with pytest.raises(UnknownModel):
        loader.unload("one")
    first.join()


def test_a_model_for_whose_reload_there_is_no_room_is_unloaded(setup: LoaderSetup) -> None:
    free = [2**30]
    loader = setup.loader(room=MemoryRoom(lambda: free[0], lambda: 2**30))
    loader.load("one", setup.platform.write_flat("one"))
    free[0] = 0
    with pytest.raises(OutOfMemory):
        loader.reload("one")
    assert (setup.triton.calls, setup.staged()) == (["load one", "unload one"], [])
    assert "one" not in setup.records.read().serving


def test_an_unload_while_triton_does_not_answer_changes_nothing(setup: LoaderSetup) -> None:
    loader = setup.loader()
    record = loader.load("one", setup.platform.write_flat("one"))
    setup.triton.failing = NotReady("Triton is not there")
    with pytest.raises(NotReady):
        loader.unload("one")
    assert setup.records.read().serving["one"] == record
    assert setup.staged() == ["one"]


def test_a_model_that_triton_lost_may_be_loaded_again(setup: LoaderSetup) -> None:
    url = setup.platform.write_flat("one")
    setup.loader().load("one", url)
    with pytest.raises(Conflict):
        setup.loader().load("one", url)
    setup.triton.unready_models = ("one",)
    setup.triton.calls.clear()
    setup.loader().load("one", url)
    assert setup.triton.calls == ["unload one", "load one"]


def test_a_new_load_replaces_a_half_done_one(setup: LoaderSetup) -> None:
    record = setup.loader().load("one", setup.platform.write_nested("one", ENSEMBLE))
    setup.records.put(replace(record, state=State.CHANGING))
    second_record = setup.loader().load("one", setup.platform.write_flat("one", multiplying_model(2)))
    assert second_record.models == {"model": "one"}
    assert setup.staged() == ["one"]


class HangingTriton(RecordingControl):
    """A load that does not end."""

    def load(self, model: str, parts: Collection[str] = (), seconds: float | None = None) -> None:
        super().load(model)
        self.model_states[model] = "LOADING"
        raise DeadlinePassed("it takes too long")


def test_a_model_that_is_loaded_after_its_deadline_is_unloaded_and_removed(setup: LoaderSetup) -> None:
    setup.triton = HangingTriton()
    loader = setup.loader()
    with pytest.raises(DeadlinePassed):
        loader.load("hangs", setup.platform.write_flat("a"))
    assert setup.triton.calls == ["load hangs"], "Triton would wait for the load"
    setup.triton.model_states["hangs"] = "READY"
    loader.reap()
    assert (setup.triton.calls, setup.staged()) == (["load hangs", "unload hangs"], [])


@pytest.mark.parametrize("kind", ["gone", "file", "loop"])
def test_an_archive_replaced_while_it_is_read_is_a_400(
    setup: LoaderSetup, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = setup.platform.write_nested("one", ENSEMBLE)
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
        setup.loader().load("one", url)
    assert setup.left() == ([], {})


def test_a_targets_name_becomes_a_safe_folder_name_of_its_own() -> None:
    names = ["a/b.tar.gz", "a-b.tar.gz/", "..", "\u00fc", "x" * 300, "x" * 301]
    assert re.fullmatch(r"a-b-tar-gz-[0-9a-f]{8}", plain(names[0]))
    assert len({plain(name) for name in names}) == len(names)
    assert all(len(plain(name)) <= 200 for name in names)
