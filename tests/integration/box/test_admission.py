"""A flooded or stalled model does not delay other models: each has its own queue and its share of the threads.

Flooded models wait until a test releases them, so that nothing depends on the speed of the machine.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import requests

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, retry_until_ok, wait_until
from tests.support.load import Load, dispatch_body
from tests.support.tritons import ECHO_BODY

pytestmark = pytest.mark.core

WORKERS, THREADS, QUEUE = 2, 2, 4
#: How many threads one model may use in all workers, and how many invocations the workers hold at once.
MODEL_SHARE, MAX_IN_WORKERS = WORKERS * THREADS, WORKERS * (2 * THREADS + QUEUE)
MANY_MODELS = 80  # more than the workers hold, and more than have a series of their own
#: Longer than a test may take: only the test releases a flooded model.
MAX_WAIT_S = 300
#: ``quiet`` answers at once; every other model waits until there is a file ``go`` in the box's folder.
CLIENT = """
import time
from sm.client import Client, TextPayload

class {name}(Client):
    payload = TextPayload

    def inference(self, payload):
        end = time.monotonic() + {held}
        while {waits} and not (self.folder.parents[1] / "go").exists() and time.monotonic() < end:
            time.sleep(0.02)
        return len(payload.text)
"""
#: Calls two models within one request.
PIPELINE = """
import numpy as np
from sm.client import Client, TextPayload

class Pipeline(Client):
    payload = TextPayload
    models = ("echo", "fixed")

    def inference(self, payload):
        rows = np.ones((1, 100_000), np.float32)
        return float(self.triton.infer("fixed", {"x": self.triton.infer("echo", {"x": rows})["y"]})["y"].sum())
"""


CLIENTS = {
    f"{name}/client.py": CLIENT.format(name=name.capitalize(), waits=name != "quiet", held=MAX_WAIT_S)
    for name in ("flooded", "quiet", *(f"many{number}" for number in range(MANY_MODELS)))
}


def release(box: RunningBox) -> None:
    (box.folder / "go").touch()


def gauge(box: RunningBox, name: str, model: str) -> float:
    return box.metric(f"trireme_model_{name}", model=model)


def max_worker_threads(box: RunningBox) -> int:
    """The number of threads of the worker with the most."""
    return max(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in box.workers())


@pytest.fixture(scope="module")
def module_box(boxes: Boxes) -> Iterator[RunningBox]:
    with boxes.own(
        ("echo", "fixed"),
        ({**CLIENTS, "pipeline/client.py": PIPELINE},),
        ready_within_s=180,  # each worker loads 83 clients
        SAGEMAKER_MODEL_SERVER_WORKERS=str(WORKERS),
        TRIREME_THREADS=str(THREADS),
        TRIREME_QUEUE=str(QUEUE),
        TRIREME_RESTARTS="50",
        SAGEMAKER_MODEL_SERVER_TIMEOUT=str(MAX_WAIT_S),
    ) as box:
        yield box


@pytest.fixture
def box(module_box: RunningBox) -> Iterator[RunningBox]:
    """The module's box; afterwards waiting models are released and the queues are empty."""
    (module_box.folder / "go").unlink(missing_ok=True)
    yield module_box
    release(module_box)
    wait_until(
        lambda: module_box.metric("trireme_model_in_flight") == 0, description="no invocation in flight"
    )
    wait_until(lambda: module_box.metric("trireme_model_queue_length") == 0, description="empty queues")


@contextmanager
def flood_model(box: RunningBox, callers: int) -> Iterator[Load]:
    """Call the model ``flooded`` until its queue is full and its share is at work; release it afterwards."""
    with Load(box.port, dispatch_body("flooded", "wait"), retry_delay_s=0.05).start(callers) as load:
        try:
            wait_until(lambda: load.outcomes["429"] > 0, description="a 429")
            wait_until(
                lambda: gauge(box, "in_flight", "flooded") == MODEL_SHARE,
                description="the model's share at work",
            )
            yield load
        finally:
            release(box)


def outcomes(box: RunningBox, model: str, callers: int, requests_each: int) -> dict[str, int]:
    load = Load(box.port, dispatch_body(model, "four"))
    return dict(load.start(callers, requests_each).join().outcomes)


def test_only_the_flooded_model_is_refused_and_no_other_model_waits(box: RunningBox) -> None:
    rejected_before = gauge(box, "rejected_total", "quiet")
    with flood_model(box, callers=60) as load:
        assert outcomes(box, "quiet", 3, 20) == {"200": 60}
        assert outcomes(box, "pipeline", 2, 5) == {"200": 10}
        assert box.invoke("quiet", ["four"] * 100).json()["result"] == [4] * 100
        v2_url = f"{box.url}/v2"
        assert requests.post(f"{v2_url}/models/echo/infer", data=ECHO_BODY, timeout=20).status_code == 200
        assert requests.get(f"{v2_url}/health/ready", timeout=20).status_code == 200
        assert box.ping()[0] == 200
        # All that time the flooded model finished no request.
        assert load.outcomes["200"] == 0
        assert gauge(box, "queue_length", "flooded") > 0
        assert gauge(box, "rejected_total", "flooded") > 0
        assert gauge(box, "rejected_total", "quiet") == rejected_before
    assert set(load.outcomes) == {"200", "429"}
    # After the release the model is known as a slow one, and the header says when to come again.
    assert all("retry-after: " in head for head in load.headers)


def test_many_busy_models_use_a_bounded_number_of_threads_and_metrics(box: RunningBox) -> None:
    threads_before = max_worker_threads(box)
    loads = [
        Load(box.port, dispatch_body(f"many{number}", "wait")).start(callers=1, requests_each=1)
        for number in range(MANY_MODELS)
    ]
    wait_until(
        lambda: sum(load.total() for load in loads) == MANY_MODELS - MAX_IN_WORKERS,
        description="answers to all that do not fit",
    )
    assert max_worker_threads(box) <= threads_before + 2 * THREADS + QUEUE + 2 * THREADS
    assert box.ping()[0] == 200
    release(box)
    statuses = sorted(outcome for load in loads for outcome in load.join().outcomes)
    assert statuses == ["200"] * MAX_IN_WORKERS + ["429"] * (MANY_MODELS - MAX_IN_WORKERS)
    series = box.scrape().splitlines()
    assert len([line for line in series if line.startswith("trireme_model_in_flight{")]) <= 65
    assert box.invoke("quiet", "four").json()["result"] == 4


def test_a_stalled_model_process_does_not_make_other_models_wait(box: RunningBox) -> None:
    """Nobody waits in the stalled model's queue."""
    process = box.pid("/echo/1/model.py")
    os.kill(process, signal.SIGSTOP)
    path = "/v2/models/echo/infer"
    with Load(box.port, ECHO_BODY, path=path, retry_delay_s=0.05).start(40, requests_each=2) as stalled_load:
        try:
            quiet = outcomes(box, "quiet", 2, 50)
            healthy = Load(box.port, b'{"inputs":[]}', path="/v2/models/fixed/infer").start(1, 5).join()
        finally:
            with suppress(ProcessLookupError):  # the box has already killed it
                os.kill(process, signal.SIGCONT)
        stalled_load.join()
    assert quiet == {"200": 100}
    # The body lacks its tensor: a 400 shows that Triton has processed the request.
    assert set(healthy.outcomes) == {"400"}
    box.wait_ready()
    response = retry_until_ok(lambda: requests.post(f"{box.url}{path}", data=ECHO_BODY, timeout=60))
    assert response.json()["outputs"][0]["data"] == [1.0, 2.0]
