"""The box keeps answering and recovers when processes die or callers are too many.

The flooded model waits until its test releases it, so that nothing depends on the speed of the machine.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import requests

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, descendants, wait_until
from tests.support.load import Load, dispatch_body
from tests.support.tritons import ECHO_BODY

WORKERS, THREADS = 2, 2
#: How many threads one model may use in all workers.
MODEL_SHARE = WORKERS * THREADS
#: Longer than a test may take: only the test releases a flooded model.
MAX_WAIT_S = 300
#: ``quiet`` answers at once; ``flooded`` waits until there is a file ``go`` in the box's folder.
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
#: Calls two models within one request, and answers with numbers of the payload.
PIPELINE = """
import numpy as np
from sm.client import Client, TextPayload

class Pipeline(Client):
    payload = TextPayload
    models = ("echo", "fixed")

    def inference(self, payload):
        rows = np.full((1, 100_000), len(payload.text), np.float32)
        return float(self.triton.infer("fixed", {"x": self.triton.infer("echo", {"x": rows})["y"]})["y"].sum())
"""
CLIENTS = {
    f"{name}/client.py": CLIENT.format(name=name.capitalize(), waits=name != "quiet", held=MAX_WAIT_S)
    for name in ("flooded", "quiet")
}
INFER = "/v2/models/echo/infer"


@pytest.fixture(scope="module")
def box(boxes: Boxes) -> Iterator[RunningBox]:
    with boxes.own(
        ("echo", "fixed"),
        ("box", {**CLIENTS, "pipeline/client.py": PIPELINE}),
        SAGEMAKER_MODEL_SERVER_WORKERS=str(WORKERS),
        SAGEMAKER_MODEL_SERVER_TIMEOUT=str(MAX_WAIT_S),
        TRIREME_THREADS=str(THREADS),
        TRIREME_QUEUE="4",
        TRIREME_RESTARTS="50",
        TRIREME_WAIT_SECONDS="50",  # on a busy machine Triton's start takes longer than the default
    ) as box:
        yield box


def gauge(box: RunningBox, name: str, model: str) -> float:
    return box.metric(f"trireme_model_{name}", model=model)


def outcomes(box: RunningBox, model: str, callers: int, requests_each: int) -> dict[str, int]:
    return dict(Load(box.port, dispatch_body(model, "four")).start(callers, requests_each).join().outcomes)


def test_only_the_flooded_model_is_refused_and_neither_ping_nor_another_model_waits(box: RunningBox) -> None:
    rejected_before = gauge(box, "rejected_total", "quiet")
    (box.folder / "go").unlink(missing_ok=True)  # of a run before this one, which CI repeats
    with Load(box.port, dispatch_body("flooded", "wait"), retry_delay_s=0.05).start(60) as load:
        try:
            wait_until(lambda: load.outcomes["429"] > 0, description="a 429")
            wait_until(lambda: gauge(box, "in_flight", "flooded") == MODEL_SHARE, description="its share")
            assert outcomes(box, "quiet", 3, 20) == {"200": 60}
            assert outcomes(box, "pipeline", 2, 5) == {"200": 10}
            assert box.invoke("quiet", ["four"] * 100).json()["result"] == [4] * 100
            assert requests.post(box.url + INFER, data=ECHO_BODY, timeout=20).status_code == 200
            assert [box.ping()[0] for _ in range(20)] == [200] * 20
            # All that time the flooded model, which has its whole share, finished no request.
            assert load.outcomes["200"] == 0
            assert gauge(box, "queue_length", "flooded") > 0
            assert gauge(box, "rejected_total", "flooded") > 0
            assert gauge(box, "rejected_total", "quiet") == rejected_before
        finally:
            (box.folder / "go").touch()
    assert set(load.outcomes) == {"200", "429"}
    # After the release the model is known as a slow one, and the header says when to come again.
    assert all("retry-after: " in head for head in load.headers)


@contextmanager
def load_around(box: RunningBox) -> Iterator[Load]:
    """Four callers, who have had answers before the block, and have more after it. None may fail."""
    body = dispatch_body("pipeline", "four")
    with Load(box.port, body).start(callers=4) as load:
        wait_until(lambda: load.outcomes["200"] >= 8, description="answers under load")
        yield load
        answered_before = load.outcomes["200"]
        wait_until(lambda: load.outcomes["200"] >= answered_before + 8, description="answers afterwards")
    assert set(load.outcomes) == {"200"}, load.outcomes
    assert load.bodies == {b'{"modelname":"pipeline","result":800000.0}'}


def test_a_killed_triton_makes_ping_503_and_fails_no_request(box: RunningBox) -> None:
    in_shared_memory = partial(box.metric, "trireme_tensor_requests_total", transport="shared_memory")
    with load_around(box):
        os.kill(box.child("triton")["pid"], signal.SIGKILL)
        wait_until(lambda: box.ping()[0] == 503, description="/ping 503")
        box.wait_ready()
        before = in_shared_memory()
    assert in_shared_memory() > before


def test_a_killed_worker_is_replaced_and_no_request_fails(box: RunningBox) -> None:
    """nginx sends the requests of the dead worker to the other one."""
    restarts = partial(box.metric, "trireme_restarts_total", process="worker")
    before = restarts()
    with load_around(box):
        killed, _ = box.wait_for_workers(WORKERS)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: killed not in box.workers() and len(box.workers()) == WORKERS)
    wait_until(lambda: not any(f"-{killed}-" in name for name in box.shared_memory_files()))
    wait_until(lambda: restarts() == before + 1, description="the count of restarts")


def test_a_killed_master_of_the_workers_is_replaced_and_no_request_fails(box: RunningBox) -> None:
    """Requests wait in the queue of the socket, which the supervisor keeps open."""
    with load_around(box):
        box.kill_and_wait_for_restart("data")
    box.wait_ready()


def test_sigterm_under_load_loses_no_accepted_request(box: RunningBox) -> None:
    """The last test of this box."""
    box_id, processes = box.box_id(), descendants(box.process.pid)
    with (
        Load(box.port, ECHO_BODY, path=INFER).start(callers=4) as load,
        Load(box.port, dispatch_body("slow", {"seconds": 3.0})).start(2, requests_each=1) as slow_load,
    ):
        wait_until(lambda: load.outcomes["200"] >= 10, description="answers under load")
        wait_until(
            lambda: slow_load.outcomes or gauge(box, "in_flight", "slow") == 2, description="slow requests"
        )
        assert box.stop(signal.SIGTERM) == 0
        slow_load.join()
    assert slow_load.outcomes == {"200": 2}
    assert set(load.outcomes) <= {"200", "503", "refused", "429"}, load.outcomes
    assert len(load.bodies) == 1
    assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()]
    assert not list(Path("/dev/shm").glob(f"*{box_id}*"))
