"""A flooded or stalled model does not delay other models: each has its own queue and its share of the threads.

Flooded models wait until a test releases them, so that nothing depends on the speed of the machine.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from tests.support.boxes import RunningBox, retry_until_ok, running_box, wait_until
from tests.support.load import Load, dispatch_body
from tests.support.tritons import ECHO_BODY, MODELS

pytestmark = pytest.mark.core

WORKERS, THREADS, QUEUE = 2, 2, 4
#: How many threads one model may use in all workers, and how many invocations the workers hold at once.
MODEL_SHARE, MAX_IN_WORKERS = WORKERS * THREADS, WORKERS * (2 * THREADS + QUEUE)
MANY_MODELS = 80  # more than the workers hold, and more than have a series of their own
#: Longer than a test may take: only the test releases a flooded model.
MAX_WAIT_S = 300
#: ``quiet`` answers at once; every other model waits until the file ``go`` exists.
CLIENT = """
import time
from pathlib import Path
from sm.client import Client, TextPayload

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
from sm.client import Client, TextPayload

class Pipeline(Client):
    payload = TextPayload
    models = ("echo", "fixed")

    def inference(self, payload):
        rows = np.ones((1, 100_000), np.float32)
        return float(self.triton.infer("fixed", {"x": self.triton.infer("echo", {"x": rows})["y"]})["y"].sum())
"""


@dataclass
class AdmissionBox:
    box: RunningBox
    folder: Path

    def release(self) -> None:
        (self.folder / "go").touch()

    def gauge(self, name: str, model: str) -> float:
        return self.box.metric(f"trireme_model_{name}", model=model)

    def max_worker_threads(self) -> int:
        """The number of threads of the worker with the most."""
        return max(len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in self.box.workers())


@pytest.fixture(scope="module")
def module_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdmissionBox]:
    folder = tmp_path_factory.mktemp("admission")
    for model in ("echo", "fixed"):
        MODELS[model].write(folder / "model" / model)
    for name in ("flooded", "quiet", *(f"many{number}" for number in range(MANY_MODELS))):
        file = folder / "clients" / name / "client.py"
        file.parent.mkdir(parents=True)
        file.write_text(
            CLIENT.format(name=name.capitalize(), waits=name != "quiet", folder=str(folder), held=MAX_WAIT_S)
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
        SAGEMAKER_MODEL_SERVER_TIMEOUT=str(MAX_WAIT_S),
    ) as box:
        # Each worker loads 83 clients.
        box.wait_ready(180)
        yield AdmissionBox(box, folder)


@pytest.fixture
def admission_box(module_box: AdmissionBox) -> Iterator[AdmissionBox]:
    """The module's box; afterwards waiting models are released and the queues are empty."""
    (module_box.folder / "go").unlink(missing_ok=True)
    yield module_box
    module_box.release()
    wait_until(
        lambda: module_box.box.metric("trireme_model_in_flight") == 0, description="no invocation in flight"
    )
    wait_until(lambda: module_box.box.metric("trireme_model_queue_length") == 0, description="empty queues")


@contextmanager
def flood_model(admission_box: AdmissionBox, callers: int) -> Iterator[Load]:
    """Call the model ``flooded`` until its queue is full and its share is at work; release it afterwards."""
    with Load(admission_box.box.port, dispatch_body("flooded", "wait"), retry_delay_s=0.05).start(
        callers
    ) as load:
        try:
            wait_until(lambda: load.outcomes["429"] > 0, description="a 429")
            wait_until(
                lambda: admission_box.gauge("in_flight", "flooded") == MODEL_SHARE,
                description="the model's share at work",
            )
            yield load
        finally:
            admission_box.release()


def test_only_the_flooded_model_is_refused_and_no_other_model_waits(admission_box: AdmissionBox) -> None:
    rejected_before = admission_box.gauge("rejected_total", "quiet")
    with flood_model(admission_box, callers=60) as load:
        quiet_load = (
            Load(admission_box.box.port, dispatch_body("quiet", "four"))
            .start(callers=3, requests_each=20)
            .join()
        )
        assert quiet_load.outcomes == {"200": 60}
        pipeline_load = (
            Load(admission_box.box.port, dispatch_body("pipeline", "x"))
            .start(callers=2, requests_each=5)
            .join()
        )
        assert pipeline_load.outcomes == {"200": 10}
        list_response = admission_box.box.invoke("quiet", ["four"] * 100)
        assert list_response.json()["result"] == [4] * 100
        v2_url = f"{admission_box.box.url}/v2"
        assert requests.post(f"{v2_url}/models/echo/infer", data=ECHO_BODY, timeout=20).status_code == 200
        assert requests.get(f"{v2_url}/health/ready", timeout=20).status_code == 200
        assert admission_box.box.ping()[0] == 200
        # All that time the flooded model finished no request.
        assert load.outcomes["200"] == 0
        assert admission_box.gauge("queue_length", "flooded") > 0
        assert admission_box.gauge("rejected_total", "flooded") > 0
        assert admission_box.gauge("rejected_total", "quiet") == rejected_before
    assert set(load.outcomes) == {"200", "429"}
    assert all("retry-after: 1" in head for head in load.headers)


def test_many_busy_models_use_a_bounded_number_of_threads_and_metrics(admission_box: AdmissionBox) -> None:
    threads_before = admission_box.max_worker_threads()
    loads = [
        Load(admission_box.box.port, dispatch_body(f"many{number}", "wait")).start(callers=1, requests_each=1)
        for number in range(MANY_MODELS)
    ]
    wait_until(
        lambda: sum(load.total() for load in loads) == MANY_MODELS - MAX_IN_WORKERS,
        description="answers to all that do not fit",
    )
    assert admission_box.max_worker_threads() <= threads_before + 2 * THREADS + QUEUE + 2 * THREADS
    assert admission_box.box.ping()[0] == 200
    admission_box.release()
    outcomes = [outcome for load in loads for outcome in load.join().outcomes]
    assert sorted(outcomes) == ["200"] * MAX_IN_WORKERS + ["429"] * (MANY_MODELS - MAX_IN_WORKERS)
    series = admission_box.box.scrape().splitlines()
    assert len([line for line in series if line.startswith("trireme_model_in_flight{")]) <= 65
    assert admission_box.box.invoke("quiet", "four").json()["result"] == 4


def test_a_stalled_model_process_does_not_make_other_models_wait(admission_box: AdmissionBox) -> None:
    """Nobody waits in the stalled model's queue."""
    process = admission_box.box.pid("/echo/1/model.py")
    os.kill(process, signal.SIGSTOP)
    path = "/v2/models/echo/infer"
    with Load(admission_box.box.port, ECHO_BODY, path=path, retry_delay_s=0.05).start(
        callers=40, requests_each=2
    ) as stalled_load:
        try:
            quiet_load = (
                Load(admission_box.box.port, dispatch_body("quiet", "four")).start(2, requests_each=50).join()
            )
            healthy_load = (
                Load(admission_box.box.port, b'{"inputs":[]}', path="/v2/models/fixed/infer")
                .start(1, 5)
                .join()
            )
        finally:
            with suppress(ProcessLookupError):  # the box has already killed it
                os.kill(process, signal.SIGCONT)
        stalled_load.join()
    assert quiet_load.outcomes == {"200": 100}
    # The body lacks its tensor: a 400 shows that Triton has processed the request.
    assert set(healthy_load.outcomes) == {"400"}
    admission_box.box.wait_ready()
    response = retry_until_ok(
        lambda: requests.post(f"{admission_box.box.url}{path}", data=ECHO_BODY, timeout=60)
    )
    assert response.json()["outputs"][0]["data"] == [1.0, 2.0]
