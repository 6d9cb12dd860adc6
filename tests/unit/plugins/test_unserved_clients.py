"""A client whose model is not served yet waits. tests/integration/box/test_faults.py has one that is served later."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from sm.client.base import ModelMetadata
from sm.errors import NotReady, Overloaded
from sm.invocation import current
from sm.models import found_clients
from sm.models.found_clients import FoundLoader
from sm.models.table import Models
from sm.plugins.discovery import Found, find_clients
from sm.router.admission import FairGate
from tests.support.boxes import wait_until
from tests.support.client_sources import EmptyTriton, write_client
from tests.support.invocations import Callers

CLIENT_OF_LATE_MODEL = """
from sm.client.base import Client

class LateClient(Client):
    models = ("late",)

    def setup(self):
        self.ready = self.triton.metadata("late").name

    def inference(self, payload):
        return self.ready
"""


class ChangingTriton(EmptyTriton):
    """A Triton whose served models can be changed."""

    def __init__(self) -> None:
        self.models: set[str] = set()
        self.unreachable = False

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        if self.unreachable:
            raise NotReady("Triton is not there")
        if model in self.models:
            return ModelMetadata(model, ("1",), 0)
        return super().metadata(model, version)


def build(folder: Path, triton: ChangingTriton, text: str = CLIENT_OF_LATE_MODEL) -> Found:
    """Find the client as a worker does that starts while no model is served."""
    write_client(folder / "c", "late_client", text)
    return find_clients((folder / "c",), triton, Path("/nowhere"), skip_broken=True)


@pytest.fixture
def triton() -> ChangingTriton:
    return ChangingTriton()


@pytest.fixture
def models(tmp_path: Path, triton: ChangingTriton, monkeypatch: pytest.MonkeyPatch) -> Models:
    monkeypatch.setattr(found_clients, "WATCH_S", 0.0)
    return Models(FoundLoader(build(tmp_path, triton)))


def test_while_triton_is_unreachable_the_client_waits(models: Models, triton: ChangingTriton) -> None:
    triton.unreachable = True
    assert models.use("late_client", None) is None
    triton.unreachable, triton.models = False, {"late"}
    assert not models.known("late_client")
    served = models.use("late_client", None)
    assert served is not None
    assert served.client is not None
    assert served.client.inference(None) == "late"
    assert models.known("late_client")


def test_a_reload_is_kept_while_a_late_client_is_checked(tmp_path: Path, triton: ChangingTriton) -> None:
    loader = FoundLoader(build(tmp_path, triton))
    found_anew = Found({})

    class CheckedDuringAReload(ChangingTriton):
        def metadata(self, model: str, version: str = "") -> ModelMetadata:
            loader.put(found_anew)
            return super().metadata(model, version)

    during_a_reload = CheckedDuringAReload()
    during_a_reload.models = triton.models = {"late"}
    (unchecked,) = loader.found.unserved.values()
    unserved = {"late_client": replace(unchecked, triton=during_a_reload)}
    loader.put(replace(loader.found, unserved=unserved))
    assert loader.load("late_client", None)
    assert loader.found is found_anew


def test_requests_that_wait_for_a_late_client_use_the_share_of_its_name_alone(tmp_path: Path) -> None:
    go_on = threading.Event()

    class SlowTriton(ChangingTriton):
        def metadata(self, model: str, version: str = "") -> ModelMetadata:
            if self.models:
                assert go_on.wait(60)
            return super().metadata(model, version)

    slow = SlowTriton()
    models = Models(FoundLoader(build(tmp_path, slow)))
    slow.models = {"late"}
    with Callers(FairGate(share=2, room=2), 10) as callers:
        calls = [callers.call(lambda: models.use("late_client", current())) for _ in range(8)]
        try:
            wait_until(lambda: sum(call.done() for call in calls) == 4, description="those above the share")
            assert callers.call(lambda: models.use("another", current())).result() is None
        finally:
            go_on.set()
    assert Counter(type(call.exception()) for call in calls) == {Overloaded: 4, type(None): 4}
