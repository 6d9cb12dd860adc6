"""What a worker holds while it prepares a new version."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sm.invocation import current
from sm.models import table, version_clients
from sm.models.load_records import LoadRecord, LoadRecords, State
from sm.models.model_leases import ModelLeases, alone
from sm.models.table import Models
from sm.models.version_clients import prepare
from sm.plugins.discovery import DiscoveredClients
from tests.support.invocations import waiting_requests


@pytest.fixture
def records(tmp_path: Path) -> LoadRecords:
    (tmp_path / "leases").mkdir()
    return LoadRecords(tmp_path / "models.json")


def start(records: LoadRecords, folder: Path, **unserved: Any) -> Models:
    """Start a worker with a client of the models ``a`` and ``b``. There is no Triton that it could ask."""
    triton: Any = None
    models = Models(records.read, triton, ModelLeases(folder / "leases"))
    both: Any = SimpleNamespace(name="both", required_models=lambda: ("a", "b"))
    models.put(DiscoveredClients({"both": both}, unserved=unserved))
    return models


@pytest.mark.parametrize("failure", [None, ValueError("the golden answer differs"), SystemExit(1)])
def test_a_version_that_is_prepared_leaves_the_other_models_of_its_clients_alone(
    failure: BaseException | None, tmp_path: Path, records: LoadRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        models_of = {name: name}
        records.put(LoadRecord(name, "", f"first-{name}", name, models_of, version="1", state=State.SERVES))
    new = LoadRecord("a", "", "new", "a-new", {"a": "a-new"}, version="2").beside(State.STAGED)
    records.put(new)
    models = start(records, tmp_path)

    def check_golden(client: Any) -> None:
        assert all(models.hold(name, current()) for name in client.required_models())
        with alone(tmp_path / "leases", "first-b") as is_idle:
            assert not is_idle
        if failure is not None:
            raise failure

    monkeypatch.setattr(version_clients, "check_golden", check_golden)
    with pytest.raises(type(failure)) if failure else nullcontext():
        prepare(models, new)
    for identity in ("first-a", "first-b", "new"):
        with alone(tmp_path / "leases", identity) as is_idle:
            assert is_idle, identity


def test_a_client_that_asks_for_an_unserved_model_does_not_wait_for_its_own_check(
    tmp_path: Path, records: LoadRecords
) -> None:
    models = start(records, tmp_path, late=None)  # nobody may ask it anything
    assert models.hold("late", None) is None
    assert not models.known("late")


def test_requests_that_wait_for_a_new_versions_client_use_the_share_of_its_name_alone(
    tmp_path: Path, records: LoadRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def create(first: Any, *_: Any) -> Any:
        assert go_on.wait(60)
        return SimpleNamespace(client=first, check=lambda: None)

    monkeypatch.setattr(table, "create", create)

    for name in ("a", "b", "alone"):
        new = {"folder": "f", "version": "2", "state": State.SERVES}
        records.put(LoadRecord(name, "", f"id-{name}", name, {name: name}, **new))  # type: ignore[arg-type]
    models = start(records, tmp_path)
    with waiting_requests(lambda: models.use("both", current()), go_on.set) as run:
        assert run(lambda: models.use_model("alone", current())).result() is not None
