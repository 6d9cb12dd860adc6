"""Loading and unloading on a real Triton in explicit mode."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import pytest

from sm.errors import BadInput, DeadlinePassed, NotReady, OutOfMemory
from sm.triton.channel import Channel
from sm.triton.model_control import ModelControl
from tests.support.model_archives import multiplying_model
from tests.support.tritons import TritonProcess, prepare_triton


@pytest.fixture(scope="module")
def explicit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """A Triton that loads when it is told to; without a model."""
    serving = prepare_triton(tmp_path_factory.mktemp("explicit"), [])
    serving.box.repository.mkdir()
    serving.box = replace(serving.box, multi_model=True)
    serving.start()
    yield serving
    serving.stop()


@pytest.fixture
def loading(explicit: TritonProcess) -> Iterator[ModelControl]:
    channel = Channel(explicit.box.grpc_port, 60)
    yield ModelControl(channel, 60)
    channel.close()


def state(serving: TritonProcess, name: str) -> str:
    connection = HTTPConnection("127.0.0.1", serving.box.http_port, timeout=10)
    connection.request("POST", "/v2/repository/index")
    rows = json.loads(connection.getresponse().read())
    connection.close()
    return next((str(row.get("state", "")) for row in rows if row["name"] == name), "")


def test_a_loaded_model_is_ready_and_an_unloaded_one_gone(
    explicit: TritonProcess, loading: ModelControl
) -> None:
    multiplying_model().write(explicit.box.repository / "comes")
    loading.load("comes")
    assert state(explicit, "comes") == "READY"
    assert loading.ready("comes")
    loading.unload("comes")
    assert state(explicit, "comes") == "UNAVAILABLE"
    assert not loading.ready("comes")
    assert not loading.ready("nobody")


def test_unloading_what_is_not_loaded_is_no_error(loading: ModelControl) -> None:
    loading.unload("nobody")


@pytest.mark.parametrize(
    ("failing", "kind"), [("ValueError('no luck')", BadInput), ("MemoryError('no luck')", OutOfMemory)]
)
def test_tritons_reason_is_told_without_its_traceback(
    explicit: TritonProcess, loading: ModelControl, failing: str, kind: type[Exception]
) -> None:
    name = f"fails-{kind.__name__}"
    multiplying_model(failing=failing).write(explicit.box.repository / name)
    with pytest.raises(kind, match="no luck") as excinfo:
        loading.load(name)
    assert "At:" not in str(excinfo.value)


def test_a_folder_that_is_not_there_is_the_archives_fault(loading: ModelControl) -> None:
    with pytest.raises(BadInput, match="'missing'"):
        loading.load("missing")


def test_a_long_load_holds_up_neither_other_loads_nor_a_kept_connection(
    explicit: TritonProcess, loading: ModelControl
) -> None:
    slow, go_on = multiplying_model(), explicit.notes / "go-on"
    head = f"{slow.head}        while not os.path.exists({str(go_on)!r}):\n            time.sleep(0.02)\n"
    replace(slow, head=head).write(explicit.box.repository / "slow")
    multiplying_model().write(explicit.box.repository / "quick")
    kept = [HTTPConnection("127.0.0.1", explicit.box.http_port, timeout=10) for _ in range(8)]
    for connection in kept:
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()
    thread = threading.Thread(target=loading.load, args=("slow",))
    thread.start()
    loading.load("quick")
    for connection in kept:
        connection.request("GET", "/v2/health/live")
        assert connection.getresponse().read() == b""
        connection.close()
    assert thread.is_alive()
    go_on.touch()
    thread.join()
    assert state(explicit, "slow") == "READY"


def test_a_load_that_takes_too_long_is_a_504_and_can_be_taken_back(explicit: TritonProcess) -> None:
    multiplying_model(seconds=3).write(explicit.box.repository / "late")
    hasty = Channel(explicit.box.grpc_port, 0.5)
    with pytest.raises(DeadlinePassed, match="'late' within 0.5 s"):
        ModelControl(hasty, 0.5).load("late")
    hasty.close()
    patient = Channel(explicit.box.grpc_port, 60)
    ModelControl(patient, 60).unload("late")
    patient.close()
    assert state(explicit, "late") == "UNAVAILABLE"


def test_without_triton_loading_is_not_ready(tmp_path: Path) -> None:
    serving = prepare_triton(tmp_path, [])
    channel = Channel(serving.box.grpc_port, 5)
    with pytest.raises(NotReady):
        ModelControl(channel, 5).load("any")
    channel.close()
