"""Which model is unloaded for another, and who waits for whom. Triton's side is in tests/integration."""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from sm.errors import Conflict, NotReady, OutOfMemory, Overloaded, TriremeError, UnknownModel
from sm.invocation import Invocation, current
from sm.models import on_demand
from sm.models.demand import MARGIN_S, Demand
from sm.models.load_records import LoadRecord, LoadRecords, State
from sm.models.model_leases import ModelLeases, alone
from sm.models.model_loader import ModelLoader
from sm.models.on_demand import (
    FAILED,
    LOADED,
    LOADING,
    UNLOADED,
    Catalog,
    OnDemand,
)
from sm.models.table import Models
from sm.run_state import Box
from sm.server.worker import DataPlane
from tests.support.boxes import wait_until
from tests.support.invocations import waiting_requests


def record(name: str, url: str = "") -> LoadRecord:
    return LoadRecord(name, url, f"id-{name}", name, {name: name}, state=State.SERVES)


class SmallLoader:
    """A loader with room for so many models. No Triton: it keeps records alone."""

    def __init__(self, records: LoadRecords, room: int) -> None:
        self.records, self.room, self.loads = records, room, list[str]()
        self.disk_is_full = False

    def load(self, name: str, url: str) -> LoadRecord:
        self.loads.append(name)
        if self.disk_is_full:
            raise OutOfMemory("there is no disk space") from OSError(errno.ENOSPC, "no space")
        if len([*self.records.read().loaded()]) >= self.room:
            raise OutOfMemory("there is no room")
        self.records.put(loaded := record(name, url))
        return loaded

    def unload(self, name: str) -> None:
        self.records.remove(name)

    unload_idle = ModelLoader.unload_idle

    def using(self, _: Path) -> AbstractContextManager[None]:
        return nullcontext()


class Setup:
    """A repository with three models, and what loads them."""

    def __init__(self, folder: Path, room: int = 2, pinned: str = "", source: str = "") -> None:
        for name in "abc":
            (folder / "repository" / name).mkdir(parents=True)
        self.leases = folder / "leases"
        self.leases.mkdir()
        self.loader = SmallLoader(LoadRecords(folder / "models.json"), room)
        catalog, loader = Catalog(source or str(folder / "repository"), folder), self.loader
        self.models = OnDemand(loader, catalog, self.leases, pinned)  # type: ignore[arg-type]

    def load(self, name: str, used: float) -> None:
        assert self.models.ask(name) in (LOADED, LOADING)
        wait_until((self.leases / f"id-{name}").exists, description="the load")
        os.utime(self.leases / f"id-{name}", (used, used))

    def state(self, name: str) -> str:
        return next(row["state"] for row in self.models.list() if row["modelName"] == name)

    def ask(self, name: str) -> str:
        """Return the model's state, or the error's code."""
        try:
            return self.models.ask(name)
        except TriremeError as error:
            return error.code


@pytest.mark.parametrize("reason", ["", "it is pinned", "a request holds it"])
def test_the_model_that_was_used_longest_ago_makes_room_unless(tmp_path: Path, reason: str) -> None:
    setup = Setup(tmp_path, pinned="b" if reason == "it is pinned" else "")
    setup.load("a", used=2)
    setup.load("b", used=1)
    if reason == "a request holds it":
        ModelLeases(setup.leases).take("id-b")
        os.utime(setup.leases / "id-b", (1, 1))
        with pytest.raises(Conflict):
            setup.models.evict("b")
    setup.load("c", used=3)
    expected = [UNLOADED, LOADED, LOADED] if reason else [LOADED, UNLOADED, LOADED]
    assert [setup.state(name) for name in "abc"] == expected


def test_a_model_that_alone_is_too_large_is_a_507_and_not_loaded_again_at_once(tmp_path: Path) -> None:
    setup = Setup(tmp_path, room=0)
    setup.models.ask("a")
    wait_until(lambda: setup.state("a") == FAILED, description="the failure")
    loads = [*setup.loader.loads]
    assert (setup.ask("a"), setup.loader.loads) == (OutOfMemory.code, loads)


def test_a_full_disk_unloads_no_other_model_and_the_load_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup(tmp_path)
    setup.load("a", used=1)
    setup.loader.disk_is_full = True
    setup.models.ask("b")
    wait_until(lambda: setup.state("b") == FAILED, description="the failure")
    assert (setup.ask("b"), setup.state("a")) == (OutOfMemory.code, LOADED)
    setup.loader.disk_is_full = False
    monkeypatch.setattr(on_demand, "FAILURE_S", 0.0)
    setup.load("b", used=2)


@pytest.mark.parametrize("name", ["nobody", "../repository", "code", "a/../a"])
def test_another_name_is_unknown(name: str, tmp_path: Path) -> None:
    assert Setup(tmp_path).ask(name) == UnknownModel.code


def test_while_s3_is_away_the_list_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, is_over = list[str](), threading.Event()

    def fail_slowly(*arguments: str) -> str:
        asked.extend(arguments)
        assert is_over.wait(20)
        raise NotReady("S3 cannot be reached")

    monkeypatch.setattr(on_demand, "run_sources", fail_slowly)
    monkeypatch.setattr(on_demand, "ASK_PATIENCE_S", 0.05)
    setup = Setup(tmp_path, source="s3://bucket/models")
    setup.loader.records.put(record("loaded"))
    # No caller's thread is held until S3 has failed.
    assert [setup.ask(name) for name in ("a", "b", "loaded")] == [Overloaded.code, Overloaded.code, LOADED]
    is_over.set()
    wait_until(lambda: setup.ask("a") == NotReady.code)
    assert setup.ask("b") == NotReady.code
    assert asked == ["--list", "s3://bucket/models"]


class AnsweredDemand(Demand):
    """A worker's questions, and what the control plane does for each name; it knows no other."""

    def __init__(self, folder: Path, records: LoadRecords, loads: Mapping[str, Callable[[], None]]) -> None:
        super().__init__(folder / "no socket", records, {})
        self.loads = loads

    def _ask(self, name: str, headers: Mapping[str, str]) -> tuple[int, str]:
        if name not in self.loads:
            return UnknownModel.status, ""
        self.loads[name]()
        return 202, ""


@pytest.mark.parametrize(
    ("status", "error"),
    [(202, Overloaded), (429, Overloaded), (503, NotReady), (507, OutOfMemory), (0, Overloaded)],
)
def test_a_request_whose_model_does_not_come_before_its_deadline_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, error: type[TriremeError]
) -> None:
    demand = Demand(tmp_path / "no socket", LoadRecords(tmp_path / "models.json"), {})
    monkeypatch.setattr(demand, "_ask", lambda *_: (status, "so"))
    with pytest.raises(error):
        demand.load("slow", Invocation(time.monotonic() + MARGIN_S + 0.1))


def test_requests_that_wait_for_a_load_use_the_share_of_its_model_alone(tmp_path: Path) -> None:
    records = LoadRecords(tmp_path / "models.json")
    demand = AnsweredDemand(tmp_path, records, {"slow": lambda: None, "other": lambda: None})
    go_on = partial(records.put, record("slow"))
    with waiting_requests(lambda: demand.load("slow", current()), go_on) as run:
        assert run(lambda: demand.load("nobody", current())).result() is False
        other = run(lambda: demand.load("other", current()))
        records.put(record("other"))
        assert other.result() is True


def test_to_know_of_a_model_loads_nothing_and_to_use_it_does(tmp_path: Path) -> None:
    (tmp_path / "leases").mkdir()
    records, triton = LoadRecords(tmp_path / "models.json"), Mock()
    demand = AnsweredDemand(tmp_path, records, {"cats": lambda: records.put(record("cats"))})
    leases = ModelLeases(tmp_path / "leases")
    models = Models(records.read, triton, leases, is_closed=True, demand=demand)
    assert not models.known("cats")
    assert not records.read().records
    invocation: Any = Invocation(math.inf)
    invocation.leases = {}
    assert models.use("cats", invocation) == ("cats", None, "cats")
    assert models.known("cats")
    with alone(tmp_path / "leases", "id-cats") as is_idle:
        assert not is_idle


def test_a_worker_holds_the_model_of_its_request(tmp_path: Path) -> None:
    """So the control plane, which asks in the same folder, does not unload it."""
    box = Box("id", tmp_path, tmp_path, 1, 2, 3, "nginx", 0, catalog=str(tmp_path))
    box.leases_folder.mkdir()
    LoadRecords(box.models_file).put(record("cats"))
    models = DataPlane.archives(SimpleNamespace(box=box), Mock())  # type: ignore[arg-type]
    invocation: Any = Invocation(math.inf)
    invocation.leases = {}
    models.use("cats", invocation)
    with alone(box.leases_folder, "id-cats") as is_idle:
        assert not is_idle


def test_nobody_is_alone_with_a_held_model_and_holds_one_that_is_being_unloaded(tmp_path: Path) -> None:
    leases = ModelLeases(tmp_path)
    assert leases.take("a") and leases.take("a")
    leases.release("a")
    with alone(tmp_path, "a") as is_idle:
        assert not is_idle
    leases.release("a")
    with alone(tmp_path, "a") as is_idle:
        assert is_idle and not leases.take("a")
    assert leases.take("a")
