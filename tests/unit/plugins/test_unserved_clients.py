"""A worker that starts while a model is not served: its client comes when the model does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sm.client.base import ModelMetadata
from sm.errors import NotReady, UnknownModel
from sm.plugins import registry, unserved_clients
from sm.plugins.registry import Registry
from sm.plugins.unserved_clients import LateClients
from tests.support.client_sources import NothingServed, write

NEEDY = """
from sm.client.base import Client

class Needy(Client):
    models = ("late",)

    def setup(self):
        self.ready = self.triton.metadata("late").name

    def inference(self, payload):
        return self.ready
"""


class Serving(NothingServed):
    """A Triton whose models come and go; ``asked`` counts questions."""

    def __init__(self) -> None:
        self.models: set[str] = set()
        self.away = False
        self.asked = 0

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        self.asked += 1
        if self.away:
            raise NotReady("Triton is not there")
        if model in self.models:
            return ModelMetadata(model, ("1",), 0)
        return super().metadata(model, version)


@pytest.fixture
def triton() -> Serving:
    return Serving()


@pytest.fixture
def worker(tmp_path: Path, triton: Serving, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The registry of a worker that started while nothing was served."""
    monkeypatch.setattr(unserved_clients, "RETRY_INTERVAL_S", 0.0)
    write(tmp_path / "c", "needy", NEEDY)
    built = registry.build((tmp_path / "c",), triton, Path("/nowhere"), skip_broken=True)
    return replace(built, clients=LateClients(built.clients, built.unserved))


def test_a_client_comes_when_its_model_does(worker: Registry, triton: Serving) -> None:
    with pytest.raises(UnknownModel, match="'late' is not served"):
        worker.get("needy")
    assert not worker.is_served("needy")
    triton.models = {"late"}
    assert worker.is_served("needy")
    assert worker.get("needy").inference(None) == "late"
    assert list(worker.clients) == ["needy"]


def test_while_triton_is_away_it_waits(worker: Registry, triton: Serving) -> None:
    triton.away = True
    with pytest.raises(UnknownModel):
        worker.get("needy")
    triton.away, triton.models = False, {"late"}
    assert worker.get("needy").inference(None) == "late"


def test_who_describes_the_clients_is_told_once(worker: Registry, triton: Serving) -> None:
    told: list[list[str]] = []
    assert isinstance(worker.clients, LateClients)
    worker.clients.watch(lambda: told.append(list(worker.clients)))
    triton.models = {"late"}
    for _ in range(3):
        worker.get("needy")
    assert told == [["needy"]]


def test_triton_is_asked_no_more_than_once_in_an_interval_and_never_for_other_names(
    worker: Registry, triton: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unserved_clients, "RETRY_INTERVAL_S", 3600.0)
    before = triton.asked
    for _ in range(5):
        assert not worker.is_served("needy")
        assert not worker.is_served("other")
    assert triton.asked == before + 1


def test_a_client_whose_check_fails_stays_away(tmp_path: Path, triton: Serving) -> None:
    write(tmp_path / "c", "needy", NEEDY.replace('self.triton.metadata("late").name', "1 / 0"))
    built = registry.build((tmp_path / "c",), triton, Path("/nowhere"), skip_broken=True)
    late = replace(built, clients=LateClients(built.clients, built.unserved))
    triton.models = {"late"}
    with pytest.raises(UnknownModel):
        late.get("needy")
