"""A worker's clients from archives: created at the first request, gone with their archive, and independent."""

from __future__ import annotations

import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sm.client.base import Client, ModelMetadata
from sm.errors import BadInput, ClientFailed, NotReady, UnknownModel
from sm.invocation import current
from sm.models.archive_clients import ArchiveLoader
from sm.models.load_records import LoadRecord, LoadRecords, State
from sm.models.table import Models
from tests.support.boxes import wait_until
from tests.support.model_archives import ArchiveFolder

pytestmark = pytest.mark.core

CLIENT = """
from sm.client.base import Client
import helper
from .helper import NAME

class Mine(Client):
    models = ("model",)
    def inference(self, payload):
        return [NAME, helper.NAME, self.triton.metadata("model").name]
"""

WAIT_FOR_FILE = """
import pathlib, time
here = pathlib.Path(__file__)
here.with_name('begun').touch()
while not (here.parents[3] / 'go-on').exists():
    time.sleep(0.01)
"""


class FakeTriton:
    """Stands in for a worker's Triton. It serves every model that is not in ``unserved_models``."""

    def __init__(self) -> None:
        self.unreachable, self.unserved_models, self.forgotten_models = False, set[str](), list[str]()

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        if self.unreachable:
            raise NotReady("Triton is not there")
        if model in self.unserved_models:
            raise UnknownModel(model)
        return ModelMetadata(model, ("1",), 0)

    def forget(self, models: Any) -> None:
        self.forgotten_models += models


class Worker:
    """The clients of one worker, and the records that it reads."""

    def __init__(self, folder: Path) -> None:
        self.platform = ArchiveFolder(folder / "archives")
        self.records = LoadRecords(folder / "models.json")
        self.triton = FakeTriton()
        # FakeTriton has only what a client needs.
        loader = ArchiveLoader(LoadRecords(folder / "models.json"), self.triton)  # type: ignore[arg-type]
        self.models = Models(loader, forget=self.triton.forget, is_closed=True, comes_again=False)

    def load(self, name: str, identity: str, **code: str) -> None:
        url = self.platform.write_flat(name, None, **code)
        client = f"{url}/code/client.py" if code else ""
        names = {"model": f"{name}-in-triton"}
        record = LoadRecord(
            name, url, identity, names["model"], names, client, "", url, names, state=State.SERVES
        )
        self.records.put(record)

    def get(self, name: str) -> Client:
        """Return an archive's client, as a request does."""
        served = self.models.use(name, current())
        if served is None or served.client is None:
            raise self.models.explain(name)
        return served.client

    def run_client(self, name: str) -> Any:
        return self.get(name).inference(None)


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


def modules_below(home: str) -> list[str]:
    return [
        name for name, module in list(sys.modules.items()) if home in str(getattr(module, "__file__", ""))
    ]


def test_two_archives_may_have_modules_of_the_same_name(worker: Worker) -> None:
    for name in ("one", "two"):
        worker.load(name, name, client=CLIENT, helper=f"NAME = {name!r}")
    for _ in range(2):
        for name in ("one", "two"):
            assert worker.run_client(name) == [name, name, f"{name}-in-triton"]


def test_an_archives_client_cannot_take_the_name_of_a_built_in_client(worker: Worker) -> None:
    source = CLIENT.replace("    models", "    name, replaces = 'resnet', 'resnet'\n    models")
    worker.load("mine", "1", client=source, helper="NAME = 'mine'")
    assert worker.run_client("mine") == ["mine", "mine", "mine-in-triton"]
    assert worker.get("mine").name == "mine"
    with pytest.raises(UnknownModel):
        worker.get("resnet")


def test_an_unloaded_archives_client_and_modules_are_freed(worker: Worker) -> None:
    worker.load("one", "1", client=CLIENT, helper="NAME = 1")
    client = weakref.ref(worker.get("one"))
    worker.records.remove("one")
    with pytest.raises(UnknownModel):
        worker.get("one")
    assert worker.triton.forgotten_models == ["one-in-triton"]
    # They are freed in the background.
    wait_until(lambda: client() is None, description="freeing the client")
    wait_until(lambda: not modules_below(str(worker.platform.home)), description="freeing its modules")


def test_a_client_that_cannot_be_imported_is_reported_until_it_is_replaced(worker: Worker) -> None:
    worker.load("one", "1", client="import no_such_module\n")
    for _ in range(2):
        with pytest.raises(ClientFailed):
            worker.get("one")
    worker.load("one", "2", client=CLIENT, helper="NAME = 2")
    assert worker.run_client("one")[0] == 2


def test_a_client_cannot_use_a_model_of_another_archive(worker: Worker) -> None:
    worker.load("one", "1", client=CLIENT.replace('("model",)', '("two",)'), helper="NAME = 1")
    with pytest.raises(ClientFailed):
        worker.get("one")


@pytest.mark.parametrize(
    "statement", ["raise KeyboardInterrupt", "raise SystemExit(3)", "raise GeneratorExit"]
)
@pytest.mark.parametrize("place", ["setup", "import"])
def test_a_client_that_raises_to_end_the_process_only_fails_itself(
    worker: Worker, statement: str, place: str
) -> None:
    source = f"{CLIENT}    def setup(self):\n        {statement}\n" if place == "setup" else statement
    worker.load("one", "1", client=source, helper="NAME = 1")
    for _ in range(2):
        with pytest.raises(ClientFailed):
            worker.get("one")


def test_unloading_during_a_clients_import_makes_it_unknown_and_leaves_no_modules(
    worker: Worker,
) -> None:
    worker.load("one", "1", client=WAIT_FOR_FILE + CLIENT, helper="NAME = 1")
    began = worker.platform.home / "one" / "model" / "code" / "begun"
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(worker.get, "one")
        wait_until(began.exists, description="the start of the client's import")
        worker.records.remove("one")
        with pytest.raises(UnknownModel):
            worker.get("one")
        (worker.platform.home / "go-on").touch()
        assert isinstance(waiting.exception(), UnknownModel)
    wait_until(lambda: not modules_below(str(worker.platform.home)), description="freeing its modules")


def test_a_client_is_not_ready_until_triton_serves_its_model(worker: Worker) -> None:
    worker.load("one", "1", client=CLIENT, helper="NAME = 1")
    for worker.triton.unreachable, worker.triton.unserved_models in (
        (True, set()),
        (False, {"one-in-triton"}),
    ):
        with pytest.raises(NotReady):
            worker.get("one")
    worker.triton.unserved_models = set()
    assert worker.run_client("one")[0] == 1


def test_an_archive_without_a_client_is_served_over_v2_only(worker: Worker) -> None:
    worker.load("plain", "1")
    worker.load("one", "2", client=CLIENT, helper="NAME = 1")
    assert worker.models.use("plain", None) == ("plain", None, "plain-in-triton")
    with pytest.raises(BadInput):
        worker.get("plain")
    assert worker.models.clients() == []  # none is made before it is asked for
    assert [worker.models.known(name) for name in ("plain", "one", "unknown")] == [True, True, False]
