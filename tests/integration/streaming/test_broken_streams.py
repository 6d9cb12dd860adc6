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
from tests.support.boxes import RunningBox, wait_until
from tests.support.faults.attack import Find, model_pids, triton
from tests.support.load import dispatch_body

#: Seconds after which a stream that has not ended counts as one without an end.
PATIENCE_S = 40
#: Waits for ever after its first part; goes on for much longer than a stream may take.
STALLS, FLOWS = {"count": 2, "seconds": -1.0}, {"count": 1_000_000, "seconds": 0.1}
Payload = dict[str, float]
#: Yields ``part`` for each part, and the code of what ends the stream.
Route = Callable[[RunningBox, Payload], Iterator[str]]


def read_events(url: str, body: bytes) -> Iterator[str]:
    headers = {"Accept": "text/event-stream", "Content-Type": "application/json"}
    response = requests.post(url, body, headers=headers, stream=True, timeout=PATIENCE_S)
    assert response.status_code == 200, response.text
    for line in response.iter_lines(chunk_size=None):  # as it arrives
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: ")).get("code", "part")


def client(box: RunningBox, payload: Payload) -> Iterator[str]:
    return read_events(f"{box.url}/invocations", dispatch_body("parallel", payload))


def generate_stream(box: RunningBox, payload: Payload) -> Iterator[str]:
    return read_events(f"{box.url}/v2/models/parallel/generate_stream", json.dumps(payload).encode())


def invocations_generate_stream(box: RunningBox, payload: Payload) -> Iterator[str]:
    return read_events(f"{box.url}/invocations?modelname=parallel", json.dumps(payload).encode())


def boto3(box: RunningBox, payload: Payload) -> Iterator[str]:
    response: Any = runtime_client(box.url).invoke_endpoint_with_response_stream(
        EndpointName="any", ContentType="application/json", Body=dispatch_body("parallel", payload)
    )
    with closing(response["Body"]) as events:
        try:
            for _ in events:
                yield "part"
        except EventStreamError as error:
            yield error.response["Error"]["Code"]


def connect(box: RunningBox) -> websocket.WebSocket:
    url = f"ws://127.0.0.1:{box.port}/invocations-bidirectional-stream"
    return websocket.create_connection(url, timeout=PATIENCE_S)


def web_socket(box: RunningBox, payload: Payload) -> Iterator[str]:
    with closing(connect(box)) as connection:
        connection.send(dispatch_body("parallel", payload))
        while message := connection.recv():
            code = json.loads(message).get("code", "part")
            yield code
            if code != "part":
                return


def used_web_socket(box: RunningBox, _: Payload) -> Iterator[str]:
    """Its key is checked when it opens, so it ends even if it is used all the time."""
    with closing(connect(box)) as connection:
        while True:
            connection.send(dispatch_body("slow", {"seconds": 0.1}))
            opcode, content = connection.recv_data()
            if opcode == websocket.ABNF.OPCODE_CLOSE:
                assert connection.sock is not None
                connection.sock.close()  # the WebSocket's own close() does nothing any more
                yield str(int.from_bytes(content[:2], "big"))
                return
            yield "part"


def client_alone(box: RunningBox, _: Payload) -> Iterator[str]:
    """A client that streams without a model."""
    return read_events(
        f"{box.url}/invocations", dispatch_body("words", {"text": "word " * 1000, "seconds": 0.1})
    )


#: What ends a broken or late stream, by the route's name; the others say the error's code.
OTHER_ENDS = {"boto3": "ModelStreamError", "used_web_socket": "1001"}
THROUGH_TRITON: tuple[Route, ...] = (client, generate_stream, invocations_generate_stream, boto3, web_socket)


def check_ends(
    box: RunningBox, payload: Payload, routes: tuple[Route, ...], code: str, disturb: Callable[[], None]
) -> dict[str, int]:
    """Open a stream on each route, disturb the box when all have begun, and compare how each ends; return their parts."""
    begun: set[str] = set()

    def read(route: Route) -> list[str]:
        words = []
        for word in route(box, payload):
            begun.add(route.__name__)
            words.append(word)
        return words

    with ThreadPoolExecutor(len(routes)) as pool:
        pending = {route.__name__: pool.submit(read, route) for route in routes}
        wait_until(
            lambda: len(begun) == len(routes) or any(each.done() for each in pending.values()),
            description="the first part of each stream",
        )
        disturb()
        streams = {name: each.result() for name, each in pending.items()}
    assert {name: words[-1] for name, words in streams.items()} == {
        name: OTHER_ENDS.get(name, code) for name in streams
    }
    return {name: len(words) for name, words in streams.items()}


@pytest.mark.parametrize("victim", [model_pids, triton], ids=["its model's process", "Triton"])
def test_a_stream_ends_with_an_error_when_its_server_dies(late_box: RunningBox, victim: Find) -> None:
    def kill() -> None:
        for pid in victim(late_box):
            os.kill(pid, signal.SIGKILL)

    def is_served() -> bool:
        url, few = f"{late_box.url}/v2/models/parallel/generate_stream", {"count": 2, "seconds": 0.0}
        response = requests.post(url, json=few, timeout=PATIENCE_S)
        return response.ok and response.text.count('"number"') == 2

    check_ends(late_box, FLOWS, THROUGH_TRITON, "not_ready", kill)
    wait_until(is_served, description="a whole stream")


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(STALLS, id="stalls", marks=pytest.mark.exhaustive),
        pytest.param(FLOWS, id="does not pause"),
    ],
)
def test_a_stream_has_its_own_time_limit_and_reports_it(late_box: RunningBox, payload: Payload) -> None:
    routes = (*THROUGH_TRITON, used_web_socket, client_alone)
    parts = check_ends(late_box, payload, routes, "deadline_passed", lambda: None)
    # An answer that is not a stream would have had a second, with ten parts and the end.
    going_on = [route.__name__ for route in (routes if payload == FLOWS else routes[-2:])]
    assert [(name, parts[name]) for name in going_on if parts[name] < 12] == []
