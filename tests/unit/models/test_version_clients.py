"""What a worker holds while it prepares a new version."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sm.errors import Overloaded
from sm.invocation import current
from sm.models import version_clients
from sm.models.holds import Holds, alone
from sm.models.load_records import LoadRecord, LoadRecords, State
from sm.models.table import Models
from sm.models.version_clients import CurrentModels, VersionLoader, prepare
from sm.plugins.discovery import Found
from sm.router.admission import FairGate
from tests.support.boxes import wait_until
from tests.support.invocations import Callers


class Both:
    """A client that calls two models."""

    name = "both"

    def required_models(self) -> tuple[str, ...]:
        return ("a", "b")


@pytest.mark.parametrize("failure", [None, ValueError("the golden answer differs"), SystemExit(1)])
def test_a_version_that_is_prepared_leaves_the_other_models_of_its_clients_alone(
    failure: BaseException | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "holds").mkdir()
    records = LoadRecords(tmp_path / "models.json")
    for name in ("a", "b"):
        records.put(
            LoadRecord(name, "", f"first-{name}", name, {name: name}, version="1", state=State.SERVES)
        )
    new = LoadRecord("a", "", "new", "a-new", {"a": "a-new"}, version="2").beside(State.STAGED)
    records.put(new)
    triton: Any = None
    loader = VersionLoader(records)
    models = Models(loader, Holds(tmp_path / "holds"))
    first: Any = {"both": Both()}
    loader.start(Found(first), CurrentModels(triton, models))

    def check_golden(client: Both) -> None:
        for name in client.required_models():
            assert models.hold(name, current())
        with alone(tmp_path / "holds", "first-b") as is_idle:
            assert not is_idle
        if failure is not None:
            raise failure

    monkeypatch.setattr(version_clients, "check_golden", check_golden)
    try:
        prepare(models, loader, new)
    except BaseException as error:
        assert error is failure
    for identity in ("first-a", "first-b", "new"):
        with alone(tmp_path / "holds", identity) as is_idle:
            assert is_idle, identity


def test_a_client_that_asks_for_an_unserved_model_does_not_wait_for_its_own_check(tmp_path: Path) -> None:
    loader = VersionLoader(LoadRecords(tmp_path / "models.json"))
    models = Models(loader)
    unchecked: Any = None  # nobody may ask it anything
    triton: Any = None
    loader.start(Found({}, unserved={"late": unchecked}), CurrentModels(triton, models))
    assert models.hold("late", None) is None
    assert not models.known("late")


def test_requests_that_wait_for_a_new_versions_client_use_the_share_of_its_name_alone(tmp_path: Path) -> None:
    (tmp_path / "holds").mkdir()
    go_on = threading.Event()
    triton: Any = None

    class SlowLoader(VersionLoader):
        def create(self, first: Any, records: list[LoadRecord]) -> Any:
            assert go_on.wait(60)
            return SimpleNamespace(client=first, check=lambda: None)

    records = LoadRecords(tmp_path / "models.json")
    for name in ("a", "b", "alone"):
        new = LoadRecord(name, "", f"id-{name}", name, {name: name}, folder="f", version="2")
        records.put(replace(new, state=State.SERVES))
    found: Any = {"both": Both()}
    loader = SlowLoader(records)
    models = Models(loader, Holds(tmp_path / "holds"))
    loader.start(Found(found), CurrentModels(triton, models))
    with Callers(FairGate(share=2, room=2), 10) as callers:
        calls = [callers.call(lambda: models.use("both", current())) for _ in range(8)]
        try:
            wait_until(lambda: sum(call.done() for call in calls) == 4, description="those above the share")
            assert callers.call(lambda: models.use_model("alone", current())).result() is not None
        finally:
            go_on.set()
    assert Counter(type(call.exception()) for call in calls) == {Overloaded: 4, type(None): 4}
