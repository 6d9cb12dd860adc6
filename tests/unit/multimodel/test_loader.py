"""Names are given and taken, and what fails half way leaves nothing. Triton's side: tests/integration/box/test_multi_model.py."""

from __future__ import annotations

import errno
import threading
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sm.errors import BadInput, Conflict, DeadlinePassed, NotReady, OutOfMemory, UnknownModel
from sm.multimodel.archive_layout import Archive
from sm.multimodel.load_records import Record, Records
from sm.multimodel.model_loader import Loader, plain
from sm.multimodel.staging import Staging
from sm.triton.server import MAX_STUCK_LOADS
from tests.support.model_archives import ArchiveFolder, chain_config, multiplying_model
from tests.support.noted_control import Noted


class Full(Staging):
    """A disk that is full."""

    def add(self, archive: Archive, names: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


@dataclass
class Place:
    """A loader and all that is its."""

    folder: Path
    triton: Noted = field(default_factory=Noted)

    def __post_init__(self) -> None:
        self.platform = ArchiveFolder(self.folder / "archives")
        self.repository = self.folder / "repository"
        self.repository.mkdir()
        self.records = Records(self.folder / "models.json")

    def loader(self, namespaced: bool = True, full: bool = False) -> Loader:
        kind = Full if full else Staging
        staging = kind(self.repository, self.folder / "views")
        return Loader(self.records, staging, self.triton, home=self.platform.home, namespaced=namespaced)

    def staged(self) -> list[str]:
        return sorted(path.name for path in self.repository.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


CHAIN = {"pre": multiplying_model(), "all": chain_config("pre")}


def test_an_archives_name_is_tritons_and_inner_names_stay_while_they_are_free(place: Place) -> None:
    record = place.loader().load("one", place.platform.nested("one", CHAIN))
    assert record.models == {"pre": "pre", "all": "one"}
    assert place.triton.calls == ["load one"]
    assert place.staged() == ["one", "pre"]


def test_an_inner_name_that_is_taken_gets_another(place: Place) -> None:
    loader = place.loader()
    loader.load("one", place.platform.nested("one", CHAIN))
    record = loader.load("two", place.platform.nested("two", CHAIN))
    assert record.models == {"pre": f"pre-{record.id}", "all": "two"}


def test_a_name_that_is_another_archives_inner_one_is_free_to_callers(place: Place) -> None:
    loader = place.loader()
    loader.load("one", place.platform.nested("one", CHAIN))
    record = loader.load("pre", place.platform.flat("pre"))
    assert record.entry == f"pre-{record.id}"


def test_without_namespacing_a_taken_name_is_a_conflict_that_leaves_nothing(place: Place) -> None:
    loader = place.loader(namespaced=False)
    loader.load("one", place.platform.nested("one", CHAIN))
    with pytest.raises(Conflict, match="'pre' is loaded already"):
        loader.load("two", place.platform.nested("two", CHAIN))
    assert list(place.records.read().records) == ["one"]
    assert place.staged() == ["one", "pre"]


def test_the_entry_is_unloaded_first_and_nothing_stays(place: Place) -> None:
    loader = place.loader()
    loader.load("one", place.platform.nested("one", CHAIN))
    place.triton.calls.clear()
    loader.unload("one")
    assert place.triton.calls == ["unload one", "unload pre"]
    assert (place.staged(), dict(place.records.read().records)) == ([], {})
    with pytest.raises(UnknownModel):
        loader.unload("one")


@pytest.mark.parametrize("error", [BadInput("no"), NotReady("gone"), OutOfMemory("full")])
def test_a_load_that_fails_is_as_if_it_had_never_been(place: Place, error: Exception) -> None:
    place.triton.failing = error
    with pytest.raises(type(error)):
        place.loader().load("one", place.platform.nested("one", CHAIN))
    assert (place.staged(), dict(place.records.read().records)) == ([], {})


def test_a_full_disk_is_a_507_and_leaves_nothing(place: Place) -> None:
    with pytest.raises(OutOfMemory, match="No space left"):
        place.loader(full=True).load("one", place.platform.flat("one"))
    assert not place.records.read().records
    place.loader().load("one", place.platform.flat("one"))


def test_an_unload_while_triton_is_away_changes_nothing(place: Place) -> None:
    loader = place.loader()
    record = loader.load("one", place.platform.flat("one"))
    place.triton.failing = NotReady("Triton is not there")
    with pytest.raises(NotReady):
        loader.unload("one")
    assert place.records.read().find("one") == record
    assert place.staged() == ["one"]


def test_a_model_on_its_way_is_a_conflict_and_holds_up_no_other(place: Place) -> None:
    loader = place.loader()
    url = place.platform.flat("slow")
    thread = threading.Thread(target=loader.load, args=("slow", url))
    thread.start()
    while not place.triton.calls:
        pass
    for attempt in (lambda: loader.load("slow", url), lambda: loader.unload("slow")):
        with pytest.raises(Conflict, match="is being loaded"):
            attempt()
    loader.load("other", place.platform.flat("other"))
    place.triton.held.set()
    thread.join()
    assert sorted(record.name for record in place.records.read().loaded()) == ["other", "slow"]


def test_what_another_process_left_half_done_is_cleared_away(place: Place) -> None:
    record = place.loader().load("one", place.platform.nested("one", CHAIN))
    place.records.put(replace(record, loaded=False))
    place.triton.calls.clear()
    place.loader().recover()
    assert place.triton.calls == ["unload one", "unload pre"]
    assert (place.staged(), dict(place.records.read().records)) == ([], {})


def test_a_model_that_triton_could_not_load_again_is_loaded_when_it_is_wanted(place: Place) -> None:
    url = place.platform.flat("one")
    place.loader().load("one", url)
    with pytest.raises(Conflict):
        place.loader().load("one", url)
    place.triton.lost = ("one",)
    place.triton.calls.clear()
    place.loader().load("one", url)
    assert place.triton.calls == ["unload one", "load one"]


def test_a_load_does_not_wait_for_the_clearing_away(place: Place) -> None:
    record = place.loader().load("one", place.platform.nested("one", CHAIN))
    place.records.put(replace(record, loaded=False))
    again = place.loader().load("one", place.platform.flat("one", multiplying_model(2)))
    assert again.models == {"model": "one"}
    assert place.staged() == ["one"]


@pytest.mark.parametrize("name", ["cats", "a.b-c_d", "0" * 200])
def test_a_plain_name_stays(name: str) -> None:
    assert plain(name) == name


def test_other_names_become_folders_names_and_stay_different() -> None:
    names = ["a/b.tar.gz", "a-b.tar.gz/", "..", ".hidden", "ü", "x" * 300, "x" * 301, "a b"]
    made = [plain(name) for name in names]
    assert len(set(made)) == len(names)
    for name in made:
        assert name == plain(name)
        assert len(name) <= 200


@dataclass
class Hanging(Noted):
    """Loads of the model ``hangs`` do not end."""

    def load(self, model: str, parts: Collection[str] = (), seconds: float | None = None) -> None:
        super().load(model)
        if model == "hangs":
            self.known[model] = "LOADING"
            raise DeadlinePassed("it takes too long")
        self.known[model] = "READY"

    def unload(self, model: str) -> None:
        super().unload(model)
        assert self.known.get(model) != "LOADING", "Triton would wait for the load"
        self.known[model] = "UNAVAILABLE"


def test_a_load_that_does_not_end_gives_its_name_away_and_keeps_its_files(place: Place) -> None:
    place.triton = Hanging()
    loader = place.loader()
    url = place.platform.flat("a", multiplying_model())
    with pytest.raises(DeadlinePassed, match="set by TRIREME_LOAD_TIMEOUT"):
        loader.load("hangs", url)
    assert place.records.read().records == {}
    assert place.staged() == ["hangs"]
    again = loader.load("hangs", url)
    assert again.models["model"] == f"hangs-{again.id}"
    loader.reap()
    assert place.staged() == ["hangs", f"hangs-{again.id}"]


def test_what_is_loaded_after_all_is_unloaded_and_its_files_go(place: Place) -> None:
    place.triton = Hanging()
    loader = place.loader()
    with pytest.raises(DeadlinePassed):
        loader.load("hangs", place.platform.flat("a", multiplying_model()))
    place.triton.known["hangs"] = "READY"
    loader.reap()
    assert place.triton.calls == ["load hangs", "unload hangs"]
    assert place.staged() == []


def test_without_namespacing_a_name_that_triton_still_loads_is_a_conflict(place: Place) -> None:
    place.triton = Hanging(known={"a": "LOADING"})
    with pytest.raises(Conflict):
        place.loader(namespaced=False).load("a", place.platform.flat("a", multiplying_model()))


def test_triton_is_replaced_when_too_many_loads_do_not_end(place: Place) -> None:
    wanted: list[str] = []
    place.triton = Hanging()
    loader = Loader(
        place.records,
        Staging(place.repository, place.folder / "views"),
        place.triton,
        home=place.platform.home,
        replace_triton=wanted.append,
    )
    record = Record("x", "", "id", "", {str(number): str(number) for number in range(MAX_STUCK_LOADS)})
    loader._abandoned[record.id] = record
    place.triton.known = dict.fromkeys(record.models, "LOADING")
    loader.reap()
    assert wanted == [f"{MAX_STUCK_LOADS} loads do not end in Triton: it is started again"]
