"""Models are loaded into and unloaded from a real Triton in explicit mode."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection

import pytest

from sm.errors import BadInput, DeadlinePassed, OutOfMemory
from sm.triton.channel import Channel
from sm.triton.model_control import ModelControl
from tests.support.model_archives import multiplying_model
from tests.support.tritons import TritonProcess, prepare_triton


@pytest.fixture(scope="module")
def explicit_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """A Triton that loads models on request only. Its repository is empty."""
    triton = prepare_triton(tmp_path_factory.mktemp("explicit"), [])
    triton.box.repository.mkdir()
    triton.box = replace(triton.box, multi_model=True)
    triton.start()
    yield triton
    triton.stop()


@pytest.fixture
def model_control(explicit_triton: TritonProcess) -> Iterator[ModelControl]:
    channel = Channel(explicit_triton.box.grpc_port, 60)
    yield ModelControl(channel, 60)
    channel.close()


def model_state(triton: TritonProcess, name: str) -> str:
    connection = HTTPConnection("127.0.0.1", triton.box.http_port, timeout=10)
    connection.request("POST", "/v2/repository/index")
    rows = json.loads(connection.getresponse().read())
    connection.close()
    return next((str(row.get("state", "")) for row in rows if row["name"] == name), "")


def test_a_loaded_model_is_ready_and_an_unloaded_one_gone(
    explicit_triton: TritonProcess, model_control: ModelControl
) -> None:
    multiplying_model().write(explicit_triton.box.repository / "comes")
    model_control.load("comes")
    assert model_state(explicit_triton, "comes") == "READY"
    assert model_control.ready("comes")
    model_control.unload("comes")
    assert model_state(explicit_triton, "comes") == "UNAVAILABLE"
    assert not model_control.ready("comes")
    assert not model_control.ready("unknown")


@pytest.mark.parametrize(
    ("failing", "error"), [("ValueError('no luck')", BadInput), ("MemoryError('no luck')", OutOfMemory)]
)
def test_a_failed_load_reports_tritons_reason_without_the_traceback(
    explicit_triton: TritonProcess, model_control: ModelControl, failing: str, error: type[Exception]
) -> None:
    name = f"fails-{error.__name__}"
    multiplying_model(failing=failing).write(explicit_triton.box.repository / name)
    with pytest.raises(error, match="no luck") as excinfo:
        model_control.load(name)
    assert "At:" not in str(excinfo.value)


def test_a_long_load_delays_neither_other_loads_nor_open_connections(
    explicit_triton: TritonProcess, model_control: ModelControl
) -> None:
    slow, go_on_file = multiplying_model(), explicit_triton.notes / "go-on"
    model_head = (
        f"{slow.head}        while not os.path.exists({str(go_on_file)!r}):\n            time.sleep(0.02)\n"
    )
    replace(slow, head=model_head).write(explicit_triton.box.repository / "slow")
    multiplying_model().write(explicit_triton.box.repository / "quick")
    connections = [HTTPConnection("127.0.0.1", explicit_triton.box.http_port, timeout=10) for _ in range(8)]
    for connection in connections:
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()
    thread = threading.Thread(target=model_control.load, args=("slow",))
    thread.start()
    model_control.load("quick")
    for connection in connections:
        connection.request("GET", "/v2/health/live")
        assert connection.getresponse().read() == b""
        connection.close()
    assert thread.is_alive()
    go_on_file.touch()
    thread.join()
    assert model_state(explicit_triton, "slow") == "READY"


def test_a_load_that_takes_too_long_is_a_504_and_can_be_undone(explicit_triton: TritonProcess) -> None:
    multiplying_model(seconds=3).write(explicit_triton.box.repository / "late")
    short_channel = Channel(explicit_triton.box.grpc_port, 0.5)
    with pytest.raises(DeadlinePassed, match="'late' within 0.5 s"):
        ModelControl(short_channel, 0.5).load("late")
    short_channel.close()
    long_channel = Channel(explicit_triton.box.grpc_port, 60)
    ModelControl(long_channel, 60).unload("late")
    long_channel.close()
    assert model_state(explicit_triton, "late") == "UNAVAILABLE"
