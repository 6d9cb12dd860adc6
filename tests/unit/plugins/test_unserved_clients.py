"""A client whose model is not served yet waits, unless the box starts: then it is the end."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from sm.client.base import ModelMetadata
from sm.errors import NotReady, StartError
from sm.invocation import current
from sm.models import table
from sm.models.table import Models, models_of
from sm.plugins.discovery import DiscoveredClients, find_clients
from sm.run_state import Box
from sm.server.worker import DataPlane
from sm.settings import Settings
from tests.support.client_sources import EmptyTriton, write_client
from tests.support.invocations import waiting_requests

CLIENT_OF_LATE_MODEL = """
from sm.client.base import Client

class LateClient(Client):
    models = ("late",)

    def setup(self):
        self.ready = self.triton.metadata("late").name

    def inference(self, payload):
        return self.ready
"""


class LateTriton(EmptyTriton):
    """A Triton that serves any model from some time on. ``asked`` is called first, and may fail."""

    serves, asked = False, Mock()

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        self.asked()
        return ModelMetadata(model, ("1",), 0) if self.serves else super().metadata(model, version)


@pytest.fixture
def triton() -> LateTriton:
    return LateTriton()


@pytest.fixture
def models(tmp_path: Path, triton: LateTriton) -> Models:
    """What a worker finds that starts while no model is served."""
    write_client(tmp_path / "c", "late_client", CLIENT_OF_LATE_MODEL)
    models = models_of({})
    models.put(find_clients((tmp_path / "c",), triton, Path("/nowhere"), skip_broken=True))
    return models


def test_while_triton_is_unreachable_the_client_waits(
    models: Models, triton: LateTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "WATCH_S", 0.0)
    triton.asked = Mock(side_effect=NotReady("Triton is not there"))
    assert models.use("late_client", None) is None
    triton.serves, triton.asked = True, Mock()
    assert not models.known("late_client")
    served = models.use("late_client", None)
    assert served and served.client and served.client.inference(None) == "late"
    assert models.known("late_client")


def test_a_reload_is_kept_while_a_late_client_is_checked(models: Models, triton: LateTriton) -> None:
    found_anew = DiscoveredClients({})
    triton.serves, triton.asked = True, Mock(side_effect=lambda: models.put(found_anew))
    assert models.use("late_client", None) is None
    assert models.found is found_anew


def test_requests_that_wait_for_a_late_client_use_the_share_of_its_name_alone(
    models: Models, triton: LateTriton
) -> None:
    go_on = threading.Event()
    triton.serves, triton.asked = True, Mock(side_effect=lambda: go_on.wait(60))
    with waiting_requests(lambda: models.use("late_client", current()), go_on.set) as run:
        assert run(lambda: models.use("another", current())).result() is None


def test_only_at_the_first_start_a_client_without_its_model_is_the_end(
    models: Models, triton: LateTriton, tmp_path: Path
) -> None:
    """gunicorn ends if a worker does not start, and the workers that serve already would end with it."""
    box = Box("id", tmp_path, tmp_path / "models", 1, 2, 3, "nginx", 0)
    plane: Any = SimpleNamespace(settings=Settings(clients=(tmp_path / "c",)), box=box)
    transport = Mock(wraps=triton, connect=Mock(), ready_models=Mock(return_value={}))
    with pytest.raises(StartError, match="late"):
        DataPlane.models(plane, transport)
    box.clients_file.touch()  # as a worker that has started leaves it
    models = DataPlane.models(plane, transport)
    assert not models.known("late_client")
    triton.serves = True
    assert models.use("late_client", None)
