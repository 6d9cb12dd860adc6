"""A flooded, a stalled or one of 200 models beside others: each has its own queue and its share of the threads.

Flooded models wait here until a test lets them go, so that nothing depends on how quick the machine is.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from tests.support.boxes import RunningBox, command_line, retry_until_ok, running_box, wait_until
from tests.support.load import Load, dispatch_body
from tests.support.tritons import MODELS

WORKERS, THREADS, QUEUE = 2, 2, 4
#: Threads of a model at work in all workers, and invocations of all models in the workers.
SHARE, IN_HAND = WORKERS * THREADS, WORKERS * (2 * THREADS + QUEUE)
MANY = 200
#: Longer than a test may take: a flooded model goes on when the test says so, and not by itself.
HELD_S = 300
#: ``quiet`` answers; every other one waits until the file ``go`` is there.
CLIENT = """
import time
from pathlib import Path
from sm.client.base import Client, TextPayload

class {name}(Client):
    payload = TextPayload

    def inference(self, payload):
        end = time.monotonic() + {held}
        while {waits} and not (Path({folder!r}) / "go").exists() and time.monotonic() < end:
            time.sleep(0.02)
        return len(payload.text)
"""
#: Calls two models within one request.
PIPELINE = """
import numpy as np
from sm.client.base import Client, TextPayload

class Pipeline(Client):
    payload = TextPayload
    models = ("echo", "fixed")

    def inference(self, payload):
        rows = np.ones((1, 100_000), np.float32)
        return float(self.triton.infer("fixed", {"x": self.triton.infer("echo", {"x": rows})["y"]})["y"].sum())
"""
ROWS = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}).encode()


@dataclass
class Flooded:
    box: RunningBox
    folder: Path

    def release(self) -> None:
        (self.folder / "go").touch()

    def gauge(self, name: str, model: str) -> float:
        return self.box.metric(f"trireme_model_{name}", model=model)

    def threads(self) -> int:
        """The most that a worker has."""
        return max(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in self.box.workers())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flooded]:
    folder = tmp_path_factory.mktemp("admission")
    for model in ("echo", "fixed"):
        MODELS[model].write(folder / "model" / model)
    for name in ("flooded", "quiet", *(f"many{number}" for number in range(MANY))):
        file = folder / "clients" / name / "client.py"
        file.parent.mkdir(parents=True)
        file.write_text(
            CLIENT.format(name=name.capitalize(), waits=name != "quiet", folder=str(folder), held=HELD_S)
        )
    (folder / "clients" / "pipeline").mkdir()
    (folder / "clients" / "pipeline" / "client.py").write_text(PIPELINE)
    with running_box(
        folder,
        folder / "model",
        wait_until_ready=False,
        clients=(folder / "clients",),
        SAGEMAKER_MODEL_SERVER_WORKERS=str(WORKERS),
        TRIREME_THREADS=str(THREADS),
        TRIREME_QUEUE=str(QUEUE),
        TRIREME_RESTARTS="50",
        SAGEMAKER_MODEL_SERVER_TIMEOUT=str(HELD_S),
    ) as box:
        # Each worker loads 203 clients.
        box.wait_ready(180)
        yield Flooded(box, folder)


@pytest.fixture
def flooded(served: Flooded) -> Iterator[Flooded]:
    """The box; what waits is let go in the end, and nothing is left in its queues."""
    (served.folder / "go").unlink(missing_ok=True)
    yield served
    served.release()
    wait_until(lambda: served.box.metric("trireme_model_in_flight") == 0, description="no invocation at work")
    wait_until(lambda: served.box.metric("trireme_model_queue_length") == 0, description="empty queues")


@contextmanager
def flood(flooded: Flooded, callers: int) -> Iterator[Load]:
    """Callers that come again as soon as they are refused, once the model's queue is full; released in the end."""
    with Load(flooded.box.port, dispatch_body("flooded", "wait"), retry_delay_s=0.05).start(callers) as load:
        try:
            wait_until(lambda: load.outcomes["429"] > 0, description="a 429")
            wait_until(
                lambda: flooded.gauge("in_flight", "flooded") == SHARE,
                description="the model's share at work",
            )
            yield load
        finally:
            flooded.release()


def test_a_flooded_model_alone_is_refused_and_no_other_waits_for_it(flooded: Flooded) -> None:
    refused_before = flooded.gauge("rejected_total", "quiet")
    with flood(flooded, callers=60) as load:
        quiet = (
            Load(flooded.box.port, dispatch_body("quiet", "four")).start(callers=3, requests_each=20).join()
        )
        assert quiet.outcomes == {"200": 60}
        pipeline = (
            Load(flooded.box.port, dispatch_body("pipeline", "x")).start(callers=2, requests_each=5).join()
        )
        assert pipeline.outcomes == {"200": 10}
        listed = flooded.box.invoke("quiet", ["four"] * 100)
        assert listed.json()["result"] == [4] * 100
        v2 = f"{flooded.box.url}/v2"
        assert requests.post(f"{v2}/models/echo/infer", data=ROWS, timeout=20).status_code == 200
        assert requests.get(f"{v2}/health/ready", timeout=20).status_code == 200
        assert flooded.box.ping()[0] == 200
        # All that time none of its requests was finished.
        assert load.outcomes["200"] == 0
        assert flooded.gauge("queue_length", "flooded") > 0
        assert flooded.gauge("rejected_total", "flooded") > 0
        assert flooded.gauge("rejected_total", "quiet") == refused_before
    assert set(load.outcomes) == {"200", "429"}
    assert all("retry-after: 1" in head for head in load.headers)


def test_who_hangs_up_in_the_queue_leaves_it(flooded: Flooded) -> None:
    body = dispatch_body("flooded", "wait")
    head = f"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\nContent-Type: application/json\r\n\r\n"
    callers = [socket.create_connection(("127.0.0.1", flooded.box.port), timeout=10) for _ in range(8)]
    for caller in callers:
        caller.sendall(head.encode() + body)
    wait_until(lambda: flooded.gauge("queue_length", "flooded") >= 8 - SHARE, description="a queue")

    def cancelled() -> float:
        return flooded.box.metric("trireme_invocations_total", model="flooded", status="499")

    before = cancelled()
    for caller in callers:
        caller.close()
    wait_until(lambda: flooded.gauge("queue_length", "flooded") == 0, description="an empty queue")
    wait_until(lambda: cancelled() - before >= 8 - SHARE, description="a 499 for each that waited")


def test_two_hundred_models_at_once_have_bounded_threads_and_series(flooded: Flooded) -> None:
    before = flooded.threads()
    loads = [
        Load(flooded.box.port, dispatch_body(f"many{number}", "wait")).start(callers=1, requests_each=1)
        for number in range(MANY)
    ]
    wait_until(
        lambda: sum(load.total() for load in loads) == MANY - IN_HAND, description="as many as are in hand"
    )
    assert flooded.threads() <= before + 2 * THREADS + QUEUE + 2 * THREADS
    assert flooded.box.ping()[0] == 200
    flooded.release()
    outcomes = [outcome for load in loads for outcome in load.join().outcomes]
    assert sorted(outcomes) == ["200"] * IN_HAND + ["429"] * (MANY - IN_HAND)
    series = requests.get(f"{flooded.box.url}/metrics", timeout=10).text.splitlines()
    assert len([line for line in series if line.startswith("trireme_model_in_flight{")]) <= 65
    assert flooded.box.invoke("quiet", "four").json()["result"] == 4


def test_a_stalled_model_process_keeps_no_other_model_waiting(flooded: Flooded) -> None:
    """Triton is started again where a stall is noticed, which is a 503 for all: but nobody stands in line."""
    [stub] = [pid for pid in flooded.box.pids("triton_python_backend_stub") if "/echo/" in command_line(pid)]
    os.kill(stub, signal.SIGSTOP)
    path = "/v2/models/echo/infer"
    with Load(flooded.box.port, ROWS, path=path, retry_delay_s=0.05).start(
        callers=40, requests_each=2
    ) as stalled:
        try:
            quiet = Load(flooded.box.port, dispatch_body("quiet", "four")).start(2, requests_each=50).join()
            healthy = (
                Load(flooded.box.port, b'{"inputs":[]}', path="/v2/models/fixed/infer").start(1, 5).join()
            )
        finally:
            with suppress(ProcessLookupError):  # the box has ended it already
                os.kill(stub, signal.SIGCONT)
        stalled.join()
    assert quiet.outcomes == {"200": 100}
    # The body lacks its tensor: Triton's 400 says that it has looked at it.
    assert set(healthy.outcomes) <= {"400", "503"}
    flooded.box.wait_ready()
    response = retry_until_ok(lambda: requests.post(f"{flooded.box.url}{path}", data=ROWS, timeout=60))
    assert response.json()["outputs"][0]["data"] == [1.0, 2.0]
