"""Clients of archives in a worker: made when asked for, gone with their archive, apart from each other."""

from __future__ import annotations

import sys
import threading
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sm.client.base import Client, ModelMetadata
from sm.errors import BadInput, ClientFailed, NotReady, UnknownModel
from sm.multimodel.archive_clients import LoadedClients, LoadedRegistry
from sm.multimodel.load_records import Record, Records
from tests.support.boxes import wait_until
from tests.support.model_archives import ArchiveFolder

CLIENT = """
from sm.client.base import Client
import helper
from .helper import NAME

class Mine(Client):
    models = ("model",)
    def inference(self, payload):
        return [NAME, helper.NAME, self.triton.metadata("model").name]
"""


@dataclass
class Served:
    """Stands in for a worker's Triton: it has every model, unless it is away."""

    away: bool = False
    unserved: set[str] = field(default_factory=set)
    forgotten: list[str] = field(default_factory=list)

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        if self.away:
            raise NotReady("Triton is not there")
        if model in self.unserved:
            raise UnknownModel(model)
        return ModelMetadata(model, ("1",), 0)

    def forget(self, models: Any) -> None:
        self.forgotten += models


class Worker:
    """The clients of one worker, and the records that it looks at."""

    def __init__(self, folder: Path) -> None:
        self.platform = ArchiveFolder(folder / "archives")
        self.records = Records(folder / "models.json")
        self.triton = Served()
        # Only what a client needs of the real one.
        self.clients = LoadedClients(Records(folder / "models.json"), self.triton)  # type: ignore[arg-type]
        self.registry = LoadedRegistry(self.clients)

    def load(self, name: str, identity: str, **code: str) -> None:
        url = self.platform.flat(name, None, **code)
        client = f"{url}/code/client.py" if code else ""
        names = {"model": f"{name}-in-triton"}
        record = Record(name, url, identity, names["model"], names, client, "", url, names, loaded=True)
        self.records.put(record)

    def answer(self, name: str) -> Any:
        return self.registry.get(name).inference(None)


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


def modules_in(home: str) -> list[str]:
    return [
        name for name, module in list(sys.modules.items()) if home in str(getattr(module, "__file__", ""))
    ]


def test_two_archives_have_modules_of_one_name(worker: Worker) -> None:
    for name in ("one", "two"):
        worker.load(name, name, client=CLIENT, helper=f"NAME = {name!r}")
    for _ in range(2):
        for name in ("one", "two"):
            assert worker.answer(name) == [name, name, f"{name}-in-triton"]


@pytest.mark.parametrize("says", ["pass", "replaces = 'resnet'", "name = 'resnet'"])
def test_an_archive_takes_no_name_from_the_box_whatever_its_client_says(worker: Worker, says: str) -> None:
    text = CLIENT.replace("    models", f"    {says}\n    models")
    worker.load("mine", "1", client=text, helper="NAME = 'mine'")
    assert worker.answer("mine") == ["mine", "mine", "mine-in-triton"]
    assert worker.registry.get("mine").name == "mine"
    with pytest.raises(UnknownModel):
        worker.registry.get("resnet")


def test_a_client_is_made_once(worker: Worker) -> None:
    worker.load("one", "1", client=CLIENT, helper="NAME = 1")
    made: list[Client] = []
    threads = [threading.Thread(target=lambda: made.append(worker.registry.get("one"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(map(id, made))) == 1


def test_an_archive_that_is_gone_is_gone_with_its_client_and_its_modules(worker: Worker) -> None:
    worker.load("one", "1", client=CLIENT, helper="NAME = 1")
    client = weakref.ref(worker.registry.get("one"))
    worker.records.remove("one")
    with pytest.raises(UnknownModel):
        worker.registry.get("one")
    assert worker.triton.forgotten == ["one-in-triton"]
    # It happens beside the requests.
    wait_until(lambda: client() is None, description="the end of the client")
    wait_until(lambda: not modules_in(str(worker.platform.home)), description="its modules gone")


def test_an_archive_that_is_loaded_anew_has_a_new_client(worker: Worker) -> None:
    for number in ("1", "2"):
        worker.load("one", number, client=CLIENT, helper=f"NAME = {number}")
        assert worker.answer("one")[:2] == [int(number)] * 2


def test_a_client_that_cannot_be_made_says_why_again_and_again_until_it_is_another(worker: Worker) -> None:
    worker.load("one", "1", client="import no_such_module\n")
    for _ in range(2):
        with pytest.raises(ClientFailed, match="'one' cannot be loaded: .*no_such_module"):
            worker.registry.get("one")
    worker.load("one", "2", client=CLIENT, helper="NAME = 2")
    assert worker.answer("one")[0] == 2


def test_a_client_that_calls_a_model_of_another_archive_is_told(worker: Worker) -> None:
    worker.load("one", "1", client=CLIENT.replace('("model",)', '("two",)'), helper="NAME = 1")
    with pytest.raises(ClientFailed, match="'two' is not served"):
        worker.registry.get("one")


@pytest.mark.parametrize("ends", ["raise KeyboardInterrupt", "raise SystemExit(3)", "raise GeneratorExit"])
@pytest.mark.parametrize("where", ["setup", "import"])
def test_a_client_that_wants_to_end_the_process_is_only_broken(worker: Worker, ends: str, where: str) -> None:
    text = f"{CLIENT}    def setup(self):\n        {ends}\n" if where == "setup" else ends
    worker.load("one", "1", client=text, helper="NAME = 1")
    for _ in range(2):
        with pytest.raises(ClientFailed, match=ends.split()[1].split("(")[0]):
            worker.registry.get("one")


def test_a_client_that_is_made_while_its_archive_is_unloaded_is_unknown_and_leaves_nothing(
    worker: Worker,
) -> None:
    waits = (
        "import pathlib, time\n"
        "here = pathlib.Path(__file__)\n"
        "here.with_name('begun').touch()\n"
        "while not (here.parents[3] / 'go-on').exists():\n"
        "    time.sleep(0.01)\n"
    )
    worker.load("one", "1", client=waits + CLIENT, helper="NAME = 1")
    caught: list[Exception] = []

    def ask() -> None:
        try:
            worker.registry.get("one")
        except Exception as error:
            caught.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    begun = worker.platform.home / "one" / "model" / "code" / "begun"
    wait_until(begun.exists, description="the client begun")
    worker.records.remove("one")
    with pytest.raises(UnknownModel):
        worker.registry.get("one")
    (begun.parents[3] / "go-on").touch()
    asking.join()
    assert [type(error) for error in caught] == [UnknownModel]
    wait_until(lambda: not modules_in(str(worker.platform.home)), description="its modules gone")


def test_while_triton_is_away_a_client_is_not_ready_and_then_it_is(worker: Worker) -> None:
    worker.load("one", "1", client=CLIENT, helper="NAME = 1")
    worker.triton.away = True
    with pytest.raises(NotReady):
        worker.registry.get("one")
    worker.triton.away = False
    assert worker.answer("one")[0] == 1


def test_while_triton_loads_its_model_again_a_client_is_not_ready_and_then_it_is(worker: Worker) -> None:
    worker.load("one", "1", client=CLIENT, helper="NAME = 1")
    worker.triton.unserved = {"one-in-triton"}
    for _ in range(2):
        with pytest.raises(NotReady, match="'one'"):
            worker.registry.get("one")
    worker.triton.unserved = set()
    assert worker.answer("one")[0] == 1


def test_what_has_no_client_is_for_v2_and_the_list_is_of_clients(worker: Worker) -> None:
    worker.load("plain", "1")
    worker.load("one", "2", client=CLIENT, helper="NAME = 1")
    assert worker.registry.triton_model("plain") == "plain-in-triton"
    with pytest.raises(BadInput, match="v2"):
        worker.registry.get("plain")
    assert ("plain" in worker.clients, "one" in worker.clients, list(worker.clients)) == (
        False,
        True,
        ["one"],
    )
    assert (worker.registry.served_without_client("plain"), worker.registry.served_without_client("one")) == (
        True,
        False,
    )
    assert worker.registry.is_served("plain")
    assert not worker.registry.is_served("nobody")
