"""The box keeps answering and recovers when processes die, workers hang or callers are too many."""

from __future__ import annotations

import base64
import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.box_fixture import Boxes
from tests.support.boxes import WAIT_TIMEOUT_S, RunningBox, wait_until
from tests.support.load import Load, dispatch_body


@pytest.fixture(scope="module")
def box(boxes: Boxes, demo: Path) -> Iterator[RunningBox]:
    """A box of this module's own, which may restart its processes often enough for all tests."""
    with boxes.own(
        demo,
        ("box",),
        SAGEMAKER_MODEL_SERVER_WORKERS="2",
        TRIREME_RESTARTS="50",
        TRIREME_THREADS="4",
        TRIREME_WAIT_SECONDS="50",  # on a busy machine Triton's start takes longer than the default
    ) as box:
        yield box


@pytest.fixture
def request_body(cat: bytes) -> bytes:
    return dispatch_body("resnet", base64.b64encode(cat).decode())


@contextmanager
def load_around(box: RunningBox, body: bytes) -> Iterator[Load]:
    """Four callers, who have had answers before the block, and have more after it. None may fail."""
    expected = box.send(body).content
    with Load(box.port, body).start(callers=4) as load:
        wait_until(lambda: load.outcomes["200"] >= 8, description="answers under load")
        yield load
        answered_before = load.outcomes["200"]
        wait_until(lambda: load.outcomes["200"] >= answered_before + 8, description="answers afterwards")
    assert set(load.outcomes) == {"200"}, load.outcomes
    assert load.bodies == {expected}


def test_ping_answers_at_once_with_every_thread_busy(box: RunningBox) -> None:
    with Load(box.port, dispatch_body("slow", {"seconds": 5.0})).start(
        callers=2 * 4, requests_each=1
    ) as busy_load:
        wait_until(lambda: box.metric("trireme_in_flight") >= 8, description="every thread busy")
        assert [box.ping()[0] for _ in range(20)] == [200] * 20
        # No request ended meanwhile, so no ping waited for one.
        assert busy_load.total() == 0
        assert busy_load.join().outcomes == {"200": 8}


def test_a_killed_triton_makes_ping_503_and_fails_no_request(box: RunningBox, request_body: bytes) -> None:
    with load_around(box, request_body):
        os.kill(box.child("triton")["pid"], signal.SIGKILL)
        wait_until(lambda: box.ping()[0] == 503, description="/ping 503")
        box.wait_ready()
        shared_memory_before = box.metric("trireme_tensor_requests_total", transport="shared_memory")
    assert box.metric("trireme_tensor_requests_total", transport="shared_memory") > shared_memory_before


def test_a_killed_worker_is_replaced_and_no_request_fails(box: RunningBox, request_body: bytes) -> None:
    """nginx sends the requests of the dead worker to the other one."""
    restarts_before = box.metric("trireme_restarts_total", process="worker")
    with load_around(box, request_body):
        killed_worker, _ = box.wait_for_workers(2)
        os.kill(killed_worker, signal.SIGKILL)
        wait_until(
            lambda: killed_worker not in box.workers() and len(box.workers()) == 2,
            description="a new worker",
        )
    wait_until(
        lambda: not [name for name in box.shared_memory_files() if f"-{killed_worker}-" in name],
        description="removal of its shared memory",
    )
    wait_until(
        lambda: box.metric("trireme_restarts_total", process="worker") == restarts_before + 1,
        description="the count of restarts",
    )


@pytest.mark.parametrize("name", ["nginx", "control"])
def test_a_killed_front_or_control_plane_is_back(box: RunningBox, name: str) -> None:
    restarts_before = box.child(name)["restarts"]
    box.kill_and_wait_for_restart(name)
    box.wait_ready()
    assert box.metric("trireme_restarts_total", process=name) == restarts_before + 1
    assert box.invoke("slow", {"seconds": 0}).json()["result"] == 0


def test_a_killed_master_of_the_workers_is_replaced_and_no_request_fails(
    box: RunningBox, request_body: bytes
) -> None:
    """Requests wait in the queue of the socket, which the supervisor keeps open."""
    with load_around(box, request_body):
        box.kill_and_wait_for_restart("data")
    box.wait_ready()


def test_an_overload_gets_429_and_the_rest_is_served(box: RunningBox) -> None:
    memory_before = sum(resident_bytes(pid) for pid in box.wait_for_workers(2))
    body = dispatch_body("slow", {"seconds": 0.05})
    with Load(box.port, body, retry_delay_s=1.0).start(callers=500) as flood:
        wait_until(lambda: flood.outcomes["429"] > 0, description="a full queue")
        served_before = flood.outcomes["200"]
        wait_until(lambda: flood.outcomes["200"] > served_before + 200, 60, "answers beside the refusals")
        assert box.ping()[0] == 200
    assert set(flood.outcomes) <= {"200", "429", "503"}, flood.outcomes
    assert all("retry-after" in head for head in flood.headers)
    assert sum(resident_bytes(pid) for pid in box.wait_for_workers(2)) < memory_before + 200e6


def resident_bytes(pid: int) -> float:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_hanging_up_cancels_the_callers_work(box: RunningBox, cat: bytes) -> None:
    """Eight pictures queue for a model that takes one at a time; their callers hang up."""
    body = dispatch_body("yolov5", base64.b64encode(cat).decode())
    head = f"POST /invocations HTTP/1.1\r\nHost: box\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    cancelled_before = box.metric("trireme_invocations_total", model="yolov5", status="499")

    def is_cancelled() -> bool:
        connections = [socket.create_connection(("127.0.0.1", box.port), timeout=10) for _ in range(8)]
        for connection in connections:
            connection.sendall(head.encode() + body)
        # When one is answered, the others are in flight.
        assert select.select(connections, [], [], WAIT_TIMEOUT_S)[0]
        for connection in connections:
            connection.close()
        wait_until(lambda: box.metric("trireme_in_flight") == 0, description="idle workers")
        cancelled = box.metric("trireme_invocations_total", model="yolov5", status="499")
        return cancelled > cancelled_before

    # If this process is stopped for a moment, all are answered before it closes the connections.
    wait_until(is_cancelled, description="a 499")
    assert box.invoke("yolov5", base64.b64encode(cat).decode()).status_code == 200
