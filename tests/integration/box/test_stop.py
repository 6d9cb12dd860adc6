"""A stop finishes every accepted request and leaves no process or shared memory behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import requests

from tests.support.box_fixture import Boxes
from tests.support.boxes import WAIT_TIMEOUT_S, descendants, wait_until
from tests.support.load import Load, dispatch_body
from tests.support.model_archives import multiplying_model
from tests.support.sm_command import run_sm
from tests.support.tritons import ECHO_BODY


def still_running(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def shared_memory_of(box_id: str) -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"*{box_id}*")]


def test_sigterm_under_load_loses_no_accepted_request(boxes: Boxes) -> None:
    with boxes.own(("echo",), ("box",)) as box:
        box_id, processes = box.box_id(), descendants(box.process.pid)
        with (
            Load(box.port, ECHO_BODY, path="/v2/models/echo/infer").start(callers=8) as load,
            Load(box.port, dispatch_body("slow", {"seconds": 3.0})).start(2, requests_each=1) as slow_load,
        ):
            wait_until(lambda: load.outcomes["200"] >= 10, description="answers under load")
            wait_until(
                lambda: slow_load.total() or box.metric("trireme_model_in_flight", model="slow") == 2,
                description="the slow requests",
            )
            assert box.stop(signal.SIGTERM) == 0
            slow_load.join()
    assert slow_load.outcomes == {"200": 2}
    assert set(load.outcomes) <= {"200", "503", "refused", "429"}, load.outcomes
    assert len(load.bodies) == 1
    assert not still_running(processes)
    assert not shared_memory_of(box_id)


def test_a_drained_box_serves_on_and_an_idle_one_stops_at_once_with_ctrl_c(
    boxes: Boxes,
) -> None:
    """``stop`` waits a minute: far less than the drain that running invocations would get."""
    with (
        boxes.own(("echo",), ("box",), TRIREME_DRAIN_SECONDS="3600") as box,
        requests.Session() as session,
    ):

        def answer() -> requests.Response:
            body = {"modelname": "slow", "payload": {"seconds": 0}}
            return session.post(f"{box.url}/invocations", json=body, timeout=30)

        assert answer().headers["Connection"] == "keep-alive"
        command = ("drain", "--pid", box.process.pid, "--seconds", "0.1")
        assert run_sm(*command, environment=box.environment).returncode == 0
        assert box.ping()[0] == 503
        drained = answer()
        assert (drained.status_code, drained.headers["Connection"]) == (200, "close")
        box_id, processes = box.box_id(), descendants(box.process.pid)
        assert box.shared_memory_files()
        run_folder = box.run_folder()
        assert box.stop(signal.SIGINT) == 0
    assert not still_running(processes)
    assert not shared_memory_of(box_id)
    assert not run_folder.exists()
    assert run_sm(*command, environment=box.environment).returncode == 1


def test_a_killed_box_ends_its_processes_and_the_next_one_removes_its_files_and_stops_while_it_loads(
    boxes: Boxes,
) -> None:
    with boxes.own(("echo",)) as killed:
        killed_id, processes = killed.box_id(), descendants(killed.process.pid)
        os.kill(killed.process.pid, signal.SIGKILL)
        killed.process.wait(WAIT_TIMEOUT_S)
        wait_until(lambda: not still_running(processes), description="the end of every process")
    with boxes.own({"slow_load": multiplying_model(seconds=4)}, ready_within_s=0) as box:
        wait_until(lambda: box.ping()[0] == 503, description="/ping 503 while loading")
        assert not shared_memory_of(killed_id)
        box_id, processes = box.box_id(), descendants(box.process.pid)
        assert box.stop() == 0
    assert not still_running(processes)
    assert not shared_memory_of(box_id)
