"""Every stream ends: soon after its model's process or Triton died, and at its deadline, on each route."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import requests
import websocket
from botocore.exceptions import EventStreamError

from tests.support.aws import runtime_client
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, wait_until
from tests.support.faults.attack import model_pids, triton
from tests.support.tritons import ParallelModel

#: Seconds that a stream may take, and after which a stream that has not ended counts as one without an end.
DEADLINE_S, PATIENCE_S = 12, 40
#: Waits for ever after its first part; goes on for much longer than a stream may take.
STALLS, FLOWS = {"count": 2, "seconds": -1.0}, {"count": 1_000_000, "seconds": 0.02}
MODEL = ParallelModel(
    """
for number in range(int(tensor(request, "count")[0])):
    seconds = float(tensor(request, "seconds")[0])
    while number and seconds < 0:
        time.sleep(0.1)
    time.sleep(max(0, seconds))
    yield {"number": np.array([number])}
""",
    {"count": ("INT64", [1]), "seconds": ("FP32", [1])},
    {"number": ("INT64", [1])},
)
Payload = dict[str, float]


@pytest.fixture(scope="module")
def box(boxes: Boxes) -> Iterator[RunningBox]:
    with boxes.own(
        {"parallel": MODEL},
        ("parallel",),
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        SAGEMAKER_MODEL_SERVER_TIMEOUT=str(DEADLINE_S),
        SAGEMAKER_TRITON_INFERENCE_TYPE="generate_stream",
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="parallel",
        TRIREME_STREAM_TIMEOUT=str(DEADLINE_S),
        TRIREME_THREADS="16",
        TRIREME_RESTARTS="10",
    ) as started:
        yield started


def dispatch(payload: Payload) -> dict[str, object]:
    return {"modelname": "parallel", "payload": payload}


def read_events(url: str, body: object) -> Iterator[str]:
    """Yield ``part`` for each event, and the code of an error."""
    accept = {"Accept": "text/event-stream"}
    response = requests.post(url, json=body, headers=accept, stream=True, timeout=PATIENCE_S)
    assert response.status_code == 200, response.text
    for line in response.iter_lines(chunk_size=None):  # as it arrives
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: ")).get("code", "part")


def client(box: RunningBox, payload: Payload) -> Iterator[str]:
    return read_events(f"{box.url}/invocations", dispatch(payload))


def generate_stream(box: RunningBox, payload: Payload) -> Iterator[str]:
    return read_events(f"{box.url}/v2/models/parallel/generate_stream", payload)


def invocations_generate_stream(box: RunningBox, payload: Payload) -> Iterator[str]:
    return read_events(f"{box.url}/invocations?modelname=parallel", payload)


def boto3(box: RunningBox, payload: Payload) -> Iterator[str]:
    response: Any = runtime_client(box.url).invoke_endpoint_with_response_stream(
        EndpointName="any", ContentType="application/json", Body=json.dumps(dispatch(payload))
    )
    with closing(response["Body"]) as events:
        try:
            for _ in events:
                yield "part"
        except EventStreamError as error:
            yield error.response["Error"]["Code"]


def web_socket(box: RunningBox, payload: Payload) -> Iterator[str]:
    url = f"ws://127.0.0.1:{box.port}/invocations-bidirectional-stream"
    with closing(websocket.create_connection(url, timeout=PATIENCE_S)) as connection:
        connection.send(json.dumps(dispatch(payload)))
        while message := connection.recv():
            code = json.loads(message).get("code", "part")
            yield code
            if code != "part":
                return


ROUTES = (client, generate_stream, invocations_generate_stream, boto3, web_socket)


def ends_of_streams(
    box: RunningBox, payload: Payload, disturb: Callable[[], None] = lambda: None
) -> dict[str, str]:
    """Open a stream on each route, and disturb the box when all have begun; return the last word of each."""
    begun: set[str] = set()

    def read(route: Callable[[RunningBox, Payload], Iterator[str]]) -> str:
        last = "no part"
        for word in route(box, payload):
            begun.add(route.__name__)
            last = word
        return last

    with ThreadPoolExecutor(len(ROUTES)) as pool:
        ends = {route.__name__: pool.submit(read, route) for route in ROUTES}
        wait_until(
            lambda: len(begun) == len(ROUTES) or any(end.done() for end in ends.values()),
            description="the first part of each stream",
        )
        disturb()
        return {name: end.result() for name, end in ends.items()}


def expected(code: str) -> dict[str, str]:
    """What each route says of a stream that broke or is late."""
    return {**dict.fromkeys((route.__name__ for route in ROUTES), code), "boto3": "ModelStreamError"}


@pytest.mark.parametrize("victim", [model_pids, triton], ids=["its model's process", "Triton"])
def test_a_stream_ends_with_an_error_when_its_server_dies(
    box: RunningBox, victim: Callable[[RunningBox], list[int]]
) -> None:
    def kill() -> None:
        for pid in victim(box):
            os.kill(pid, signal.SIGKILL)

    def is_served() -> bool:
        url, few = f"{box.url}/v2/models/parallel/generate_stream", {"count": 2, "seconds": 0.0}
        response = requests.post(url, json=few, timeout=PATIENCE_S)
        return response.ok and response.text.count('"number"') == 2

    assert ends_of_streams(box, FLOWS, kill) == expected("not_ready")
    wait_until(is_served, description="a whole stream")


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(STALLS, id="stalls", marks=pytest.mark.exhaustive),
        pytest.param(FLOWS, id="does not pause"),
    ],
)
def test_a_stream_that_goes_on_ends_at_its_deadline(box: RunningBox, payload: Payload) -> None:
    assert ends_of_streams(box, payload) == expected("deadline_passed")
