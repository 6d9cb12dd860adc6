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
    """A worker's Triton: it serves every model that is not in ``unserved``, and is away while that is None."""

    def __init__(self) -> None:
        self.unserved: tuple[str, ...] | None = ()
        self.forgotten: list[str] = []

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        if self.unserved is None:
            raise NotReady("Triton is not there")
        if model in self.unserved:
            raise UnknownModel(model)
        return ModelMetadata(model, ("1",), 0)

    def forget(self, models: Any) -> None:
        self.forgotten += models


class Worker:
    """The clients of one worker, and the records that it reads."""

    def __init__(self, folder: Path) -> None:
        self.platform = ArchiveFolder(folder / "archives")
        self.records = LoadRecords(folder / "models.json")
        self.triton = FakeTriton()
        # FakeTriton has only what a client needs.
        read, triton = LoadRecords(folder / "models.json").read, self.triton
        self.models = Models(read, triton, forget=triton.forget, is_closed=True)  # type: ignore[arg-type]

    def load(self, name: str, identity: str = "1", client: str = CLIENT, **code: str) -> None:
        """Load an archive; ``NAME`` of its module ``helper`` is its name and identity."""
        code = {"helper": f"NAME = '{name} {identity}'", "client": client, **code} if client else code
        url = self.platform.write_flat(name, None, **code)
        names = {"model": f"{name}-in-triton"}
        self.records.put(
            LoadRecord(
                name,
                url,
                identity,
                names["model"],
                names,
                f"{url}/code/client.py" if client else "",
                repository=url,
                names=names,
                state=State.SERVES,
            )
        )

    def get(self, name: str = "one") -> Client:
        """Return an archive's client, as a request does."""
        served = self.models.use(name, current())
        if served is None or served.client is None:
            raise self.models.explain(name)
        return served.client

    def run_client(self, name: str = "one") -> Any:
        return self.get(name).inference(None)

    def has_modules(self) -> bool:
        files = [str(getattr(module, "__file__", "")) for module in list(sys.modules.values())]
        return any(str(self.platform.home) in file for file in files)


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


def test_two_archives_may_have_modules_of_the_same_name(worker: Worker) -> None:
    worker.load("one")
    worker.load("two")
    for name in ("one", "two") * 2:
        assert worker.run_client(name) == [f"{name} 1"] * 2 + [f"{name}-in-triton"]


def test_an_archives_client_cannot_take_the_name_of_a_built_in_client(worker: Worker) -> None:
    worker.load(
        "mine", client=CLIENT.replace("    models", "    name, replaces = 'resnet', 'resnet'\n    models")
    )
    assert worker.run_client("mine") == ["mine 1", "mine 1", "mine-in-triton"]
    assert worker.get("mine").name == "mine"
    with pytest.raises(UnknownModel):
        worker.get("resnet")


def test_an_unloaded_archives_client_and_modules_are_freed(worker: Worker) -> None:
    worker.load("one")
    client = weakref.ref(worker.get())
    worker.records.remove("one")
    with pytest.raises(UnknownModel):
        worker.get()
    assert worker.triton.forgotten == ["one-in-triton"]
    # They are freed in the background.
    wait_until(lambda: client() is None, description="freeing the client")
    wait_until(lambda: not worker.has_modules(), description="freeing its modules")


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("import no_such_module", id="cannot be imported"),
        pytest.param(CLIENT.replace('("model",)', '("two",)'), id="uses a model of another archive"),
        *(
            template.format(statement)
            for statement in ("raise KeyboardInterrupt", "raise SystemExit(3)", "raise GeneratorExit")
            for template in ("{}", CLIENT.replace("{", "{{") + "    def setup(self):\n        {}\n")
        ),
    ],
)
def test_a_client_that_cannot_be_made_only_fails_itself_until_it_is_replaced(
    worker: Worker, source: str
) -> None:
    worker.load("one", client=source)
    for _ in range(2):
        with pytest.raises(ClientFailed):
            worker.get()
    worker.load("one", "2")
    assert worker.run_client()[0] == "one 2"


def test_unloading_during_a_clients_import_makes_it_unknown_and_leaves_no_modules(
    worker: Worker,
) -> None:
    worker.load("one", client=WAIT_FOR_FILE + CLIENT)
    began = worker.platform.home / "one" / "model" / "code" / "begun"
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(worker.get)
        wait_until(began.exists, description="the start of the client's import")
        worker.records.remove("one")
        with pytest.raises(UnknownModel):
            worker.get()
        (worker.platform.home / "go-on").touch()
        assert isinstance(waiting.exception(), UnknownModel)
    wait_until(lambda: not worker.has_modules(), description="freeing its modules")


def test_a_client_is_not_ready_until_triton_serves_its_model(worker: Worker) -> None:
    worker.load("one")
    for worker.triton.unserved in (None, ("one-in-triton",)):
        with pytest.raises(NotReady):
            worker.get()
    worker.triton.unserved = ()
    assert worker.run_client()[0] == "one 1"


def test_an_archive_without_a_client_is_served_over_v2_only(worker: Worker) -> None:
    worker.load("plain", client="")
    worker.load("one")
    assert worker.models.use("plain", None) == ("plain", None, "plain-in-triton")
    with pytest.raises(BadInput):
        worker.get("plain")
    assert worker.models.clients() == []  # none is made before it is asked for
    assert [worker.models.known(name) for name in ("plain", "one", "unknown")] == [True, True, False]
