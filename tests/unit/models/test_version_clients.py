"""What a worker holds while it prepares a new version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sm.models import version_clients
from sm.models.archive_clients import LoadedClients
from sm.models.holds import Holds, alone
from sm.models.load_records import Record, Records, State
from sm.models.version_clients import CurrentModels, VersionClients


class Both:
    """A client that calls two models."""

    def required_models(self) -> tuple[str, ...]:
        return ("a", "b")


@pytest.mark.parametrize("failure", [None, ValueError("the golden answer differs"), SystemExit(1)])
def test_a_version_that_is_prepared_leaves_the_other_models_of_its_clients_alone(
    failure: BaseException | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "holds").mkdir()
    records = Records(tmp_path / "models.json")
    for name in ("a", "b"):
        records.put(Record(name, "", f"first-{name}", name, {name: name}, version="1", state=State.SERVES))
    new = Record("a", "", "new", "a-new", {"a": "a-new"}, version="2").beside(State.STAGED)
    records.put(new)
    triton: Any = None
    versions = LoadedClients(records, triton, holds=Holds(tmp_path / "holds"))
    first: Any = {"both": Both()}
    clients = VersionClients(first, versions, CurrentModels(triton, versions))

    def check_golden(client: Both) -> None:
        for name in client.required_models():
            assert versions.find(name)
        with alone(tmp_path / "holds", "first-b") as is_idle:
            assert not is_idle
        if failure is not None:
            raise failure

    monkeypatch.setattr(version_clients, "check_golden", check_golden)
    try:
        clients.prepare(new)
    except BaseException as error:
        assert error is failure
    for identity in ("first-a", "first-b", "new"):
        with alone(tmp_path / "holds", identity) as is_idle:
            assert is_idle, identity
