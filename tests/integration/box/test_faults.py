"""Processes die, workers are stuck, callers are too many: the box answers and comes back."""

from __future__ import annotations

import base64
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.support.boxes import RunningBox, command_line, running, until
from tests.support.load import Load, dispatch


@pytest.fixture(scope="module")
def faulty(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """A box of this module's own, with a budget of restarts for all its tests."""
    folder = tmp_path_factory.mktemp("faulty")
    with running(
        folder, demo, TRIREME_RESTARTS="50", SAGEMAKER_MODEL_SERVER_WORKERS="2", TRIREME_THREADS="4"
    ) as box:
        yield box


@pytest.fixture
def request_body(cat: bytes) -> bytes:
    return dispatch("resnet", base64.b64encode(cat).decode())


def expected(box: RunningBox, body: bytes) -> bytes:
    return box.send(body).content


def one(pids: list[int]) -> int:
    assert pids, "the process is not there"
    return min(pids)


def test_ping_answers_with_every_worker_stuck(faulty: RunningBox) -> None:
    stuck = Load(faulty.port, dispatch("slow", {"seconds": 8.0})).start(callers=2 * 4, requests_each=1)
    until(lambda: faulty.metric("trireme_in_flight") >= 8, 10, "every thread busy")
    times = []
    for _ in range(20):
        started = time.perf_counter()
        assert faulty.ping()[0] == 200
        times.append(time.perf_counter() - started)
    assert sorted(times)[len(times) // 2] < 0.1
    assert stuck.join().outcomes == {"200": 8}


def test_triton_killed_under_load_is_a_503_at_once_and_back_through_shared_memory(
    faulty: RunningBox, request_body: bytes
) -> None:
    right = expected(faulty, request_body)
    load = Load(faulty.port, request_body).start(callers=4)
    until(lambda: load.outcomes["200"] >= 8, 30, "answers under load")
    os.kill(one(faulty.pids("tritonserver --")), signal.SIGKILL)
    status, reason = until(
        lambda: (lambda found: found if found[0] == 503 else None)(faulty.ping()), 2, "/ping 503"
    )
    assert status == 503
    assert "triton" in reason.lower()
    faulty.wait_ready(15)
    shared = faulty.metric("trireme_tensor_requests_total", transport="shared_memory")
    answered = load.outcomes["200"]
    until(lambda: load.outcomes["200"] >= answered + 8, 15, "answers after the restart")
    load.stop()
    assert set(load.outcomes) <= {"200", "503"}
    assert load.bodies == {right}
    assert all("retry-after" in head for head in load.headers)
    assert load.slowest < 20
    assert faulty.metric("trireme_tensor_requests_total", transport="shared_memory") > shared


def test_a_killed_worker_is_back_and_the_other_ones_requests_are_unharmed(
    faulty: RunningBox, request_body: bytes
) -> None:
    right = expected(faulty, request_body)
    workers = faulty.pids("sm.server.worker data")[1:]
    restarts = faulty.metric("trireme_restarts_total", process="worker")
    load = Load(faulty.port, request_body).start(callers=4)
    until(lambda: load.outcomes["200"] >= 8, 30, "answers under load")
    victim = workers[0]
    os.kill(victim, signal.SIGKILL)
    until(
        lambda: (
            victim not in faulty.pids("sm.server.worker data")
            and len(faulty.pids("sm.server.worker data")) >= 3
        ),
        5,
        "a new worker",
    )
    answered = load.outcomes["200"]
    until(lambda: load.outcomes["200"] >= answered + 8, 15, "answers after it")
    load.stop()
    assert load.bodies == {right}
    # The requests of the dead worker are answered by the front; the rest is right.
    failed = load.total() - load.outcomes["200"]
    assert failed <= 4, load.outcomes
    assert "lost" not in load.outcomes
    assert not [name for name in faulty.shared_files() if f"-{victim}-" in name]
    until(lambda: faulty.metric("trireme_restarts_total", process="worker") == restarts + 1, 5, "the count")


@pytest.mark.parametrize("name", ["nginx", "control"])
def test_a_killed_front_or_control_plane_is_back_within_five_seconds(faulty: RunningBox, name: str) -> None:
    restarts = faulty.child(name)["restarts"]
    kill_and_await(faulty, name, 5)
    faulty.wait_ready(5)
    assert faulty.metric("trireme_restarts_total", process=name) == restarts + 1
    assert faulty.invoke("slow", {"seconds": 0}).json()["result"] == 0


def test_the_data_planes_master_killed_is_back(faulty: RunningBox) -> None:
    kill_and_await(faulty, "data", 10)
    answer = until(
        lambda: (lambda found: found if found.status_code == 200 else None)(
            faulty.invoke("slow", {"seconds": 0})
        ),
        10,
        "an answer",
    )
    assert answer.json()["result"] == 0
    faulty.wait_ready(10)


def kill_and_await(box: RunningBox, name: str, seconds: float) -> None:
    """Kill a process of the supervisor's and wait for the next one.

    The state of the supervisor says when: the workers of a killed master live on for a moment, and look
    like it.
    """
    before = box.child(name)
    os.kill(before["pid"], signal.SIGKILL)
    until(
        lambda: (
            (now := box.child(name))["restarts"] == before["restarts"] + 1
            and now["state"] == "ready"
            and now["pid"] != before["pid"]
        ),
        seconds,
        f"a new {name}",
    )


def test_an_overload_is_turned_away_and_the_rest_served_at_the_usual_rate(faulty: RunningBox) -> None:
    before = sum(resident(pid) for pid in faulty.pids("sm.server.worker data"))
    body = dispatch("slow", {"seconds": 0.05})
    # Fewer than one worker takes at once, as the kernel may give it all of them.
    calm = rate(faulty, body, callers=24)
    flood = Load(faulty.port, body, patience=1.0).start(callers=500)
    time.sleep(2)
    answered, since = flood.outcomes["200"], time.monotonic()
    time.sleep(5)
    flooded = (flood.outcomes["200"] - answered) / (time.monotonic() - since)
    assert faulty.ping()[0] == 200
    flood.stop()
    assert set(flood.outcomes) <= {"200", "429", "503"}, flood.outcomes
    assert flood.outcomes["429"] > 0
    assert all("retry-after" in head for head in flood.headers)
    # The bound: within a fifth of the best.
    assert flooded > 0.8 * calm
    assert sum(resident(pid) for pid in faulty.pids("sm.server.worker data")) < before + 200e6


def test_callers_that_send_their_bodies_slowly_keep_nobody_out(faulty: RunningBox) -> None:
    """Three times as many as the workers and their queue hold, each with a body that has begun."""
    head = b"POST /invocations HTTP/1.1\r\nHost: box\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{"
    slow = [socket.create_connection(("127.0.0.1", faulty.port), timeout=10) for _ in range(120)]
    for caller in slow:
        caller.sendall(head)
    load = Load(faulty.port, dispatch("slow", {"seconds": 0.01})).start(callers=8, requests_each=25).join()
    for caller in slow:
        caller.sendall(b" ")
    assert load.outcomes == {"200": 200}
    assert faulty.ping()[0] == 200
    for caller in slow:
        caller.close()


def test_callers_without_manners_do_not_stop_the_box(faulty: RunningBox) -> None:
    flood = Load(faulty.port, dispatch("slow", {"seconds": 0.05})).start(callers=200, requests_each=8).join()
    assert set(flood.outcomes) <= {"200", "429", "503"}, flood.outcomes
    assert flood.outcomes["200"] > 0
    assert faulty.ping()[0] == 200


def rate(box: RunningBox, body: bytes, callers: int) -> float:
    load = Load(box.port, body)
    started = time.monotonic()
    load.start(callers, requests_each=25).join()
    assert load.outcomes == {"200": callers * 25}
    return load.outcomes["200"] / (time.monotonic() - started)


def resident(pid: int) -> float:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_a_deadline_that_passes_is_a_504(demo: Path, tmp_path: Path) -> None:
    with running(tmp_path, demo, SAGEMAKER_MODEL_SERVER_TIMEOUT="1") as box:
        load = Load(box.port, dispatch("slow", {"seconds": 2.0})).start(16, requests_each=1)
        load.join()
        assert set(load.outcomes) <= {"200", "504"}
        assert requests.get(f"{box.url}/ping", timeout=5).status_code == 200


def test_a_caller_that_hangs_up_cancels_its_work(faulty: RunningBox, cat: bytes) -> None:
    """Eight pictures queue for a model that takes one at a time; nobody waits for the answers."""
    body = dispatch("yolov5", base64.b64encode(cat).decode())
    head = f"POST /invocations HTTP/1.1\r\nHost: box\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    before = faulty.metric("trireme_invocations_total", model="yolov5", status="499")
    callers = [socket.create_connection(("127.0.0.1", faulty.port), timeout=10) for _ in range(8)]
    for caller in callers:
        caller.sendall(head.encode() + body)
    until(lambda: faulty.metric("trireme_in_flight") >= 4, 10, "the requests at work")
    for caller in callers:
        caller.close()
    until(
        lambda: faulty.metric("trireme_invocations_total", model="yolov5", status="499") > before, 15, "a 499"
    )
    until(lambda: faulty.metric("trireme_in_flight") == 0, 15, "idle workers")
    assert faulty.invoke("yolov5", base64.b64encode(cat).decode()).status_code == 200


def test_a_killed_model_process_is_revived_by_triton(faulty: RunningBox, request_body: bytes) -> None:
    right = expected(faulty, request_body)
    stubs = [pid for pid in faulty.pids("triton_python_backend_stub") if "/resnet/" in command_line(pid)]
    os.kill(one(stubs), signal.SIGKILL)
    answer = until(
        lambda: (lambda found: found if found.status_code == 200 else None)(faulty.send(request_body)),
        30,
        "an answer",
    )
    assert answer.content == right
