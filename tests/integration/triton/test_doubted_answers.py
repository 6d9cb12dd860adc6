"""No way into the router delivers an answer that a stalled model process may have mixed up: it asks again.

The router is the real one, with a real Triton. Each request is at work when its generation is put in doubt.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from flask.testing import FlaskClient
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, TextMessage

from sm.client import StreamingClient, TextPayload
from sm.model_processes.generations import SharedGeneration
from sm.models.table import models_of
from sm.settings import Settings
from sm.triton.transport import Transport
from tests.support.boxes import WAIT_TIMEOUT_S, wait_until
from tests.support.tritons import CreateRouter, TritonProcess

CALL = {"modelname": "measure", "payload": "four"}
SLOW_TENSORS = {
    "inputs": [
        {"name": "seconds", "datatype": "FP32", "shape": [1, 1], "data": [-1]},
        {"name": "size", "datatype": "INT64", "shape": [1, 1], "data": [1]},
    ]
}
SLOW_NUMBERS = {"seconds": -1, "size": 1}


class Measure(StreamingClient):
    """Sends the length of the text through Triton, and then works on for as long as the test wants."""

    payload = TextPayload
    notes: Path

    def stream(self, payload: TextPayload) -> Iterator[object]:
        length = np.array([[len(payload.text)]], np.float32)
        answer = self.triton.infer("echo", {"x": length})["y"].tolist()
        (self.notes / "began").touch()
        wait_until((self.notes / "go-on").exists, description="the test")
        yield answer


#: Sends a request to the router of a test; returns the status and the JSON of the answer.
Send = Callable[[FlaskClient], tuple[int, Any]]


class Router(NamedTuple):
    """The router of one test, and what the test changes while a request runs."""

    http: FlaskClient
    generation: SharedGeneration
    notes: Path


@pytest.fixture
def router(
    triton: TritonProcess,
    notes: Path,
    create_router: CreateRouter,
    tmp_path: Path,
    way: str,
    wait_seconds: float,
) -> Iterator[Router]:
    """The router as a worker creates it, with sessions and the type of inference that the way needs."""
    settings = Settings.read(
        {
            "SAGEMAKER_ENABLE_STATEFUL_SESSIONS": "true",
            "SAGEMAKER_TRITON_INFERENCE_TYPE": way if way.startswith("generate") else "infer",
            "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "slow",
            "TRIREME_WAIT_SECONDS": str(wait_seconds),
        }
    )
    generation = SharedGeneration.create(tmp_path / "generation")
    generation.watch(False)  # no supervisor writes heartbeats here
    box = replace(
        triton.box, id=f"{triton.box.id}d", run=tmp_path, generation_file=generation.path, front="gunicorn"
    )
    transport = Transport(settings, box)
    client = Measure(transport, tmp_path, box.repository)
    client.name, client.notes = "measure", notes
    models = models_of({"measure": client}, models=("echo", "slow"))
    yield Router(create_router(settings, box, models).test_client(), generation, notes)
    (notes / "go-on").touch()
    transport.close()


def post(path: str = "/invocations", **options: Any) -> Send:
    def send(http: FlaskClient) -> tuple[int, Any]:
        response = http.post(path, **options)
        return response.status_code, response.json

    return send


def use_session(http: FlaskClient) -> tuple[int, Any]:
    opened = http.post(
        "/invocations",
        json={"requestType": "NEW_SESSION"},
        headers={"X-Amzn-SageMaker-Session-Id": "NEW_SESSION"},
    )
    session_id = opened.headers["X-Amzn-SageMaker-Session-Id"]
    return post(json=CALL, headers={"X-Amzn-SageMaker-Session-Id": session_id})(http)


def post_to_endpoint(path: str) -> Send:
    def send(http: FlaskClient) -> tuple[int, Any]:
        status, answer = post(f"/endpoints/any/{path}", json=CALL)(http)
        if status != 424:
            return status, answer
        return answer["OriginalStatusCode"], json.loads(answer["OriginalMessage"])

    return send


def send_websocket_message(http: FlaskClient) -> tuple[int, Any]:
    caller, server = socket.socketpair()
    caller.settimeout(WAIT_TIMEOUT_S)
    protocol = Connection(ConnectionType.CLIENT)
    headers = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    path, connection = "/invocations-bidirectional-stream", {"gunicorn.socket": server}

    def serve() -> None:
        http.get(path, headers=headers, environ_overrides=connection).get_data()

    with ThreadPoolExecutor(1) as worker, server, caller:
        serving = worker.submit(serve)
        caller.sendall(protocol.send(TextMessage(json.dumps(CALL))))
        protocol.receive_data(caller.recv(2**16))
        caller.shutdown(socket.SHUT_RDWR)
        serving.result()
    message = next(protocol.events())
    assert isinstance(message, TextMessage | BytesMessage)
    answer = json.loads(message.data)
    # A part of the answer is sent as bytes, an error as a text.
    return 200 if isinstance(message, BytesMessage) else 503, answer


#: Each way into the router. The type of inference is set to the two whose names begin with ``generate``.
WAYS: dict[str, Send] = {
    "JSON": post(json=CALL),
    "raw body": post("/invocations?modelname=measure", data="four", content_type="text/plain"),
    "list": post(json={**CALL, "payload": ["four", "more"]}),
    "lines": post(data=f"{json.dumps(CALL)}\n" * 2, content_type="application/jsonlines"),
    "stream": post(json=CALL, headers={"Accept": "text/event-stream"}),
    "session": use_session,
    "WebSocket": send_websocket_message,
    "endpoint": post_to_endpoint("invocations"),
    "endpoint's stream": post_to_endpoint("invocations-response-stream"),
    "model's path": post("/models/measure/invoke", json={"payload": "four"}),
    "tensors": post(json=SLOW_TENSORS),
    "v2": post("/v2/models/slow/infer", json=SLOW_TENSORS),
    "v2 generate": post("/v2/models/slow/generate", json=SLOW_NUMBERS),
    "v2 stream": post("/v2/models/slow/generate_stream", json=SLOW_NUMBERS),
    "generate": post(json=SLOW_NUMBERS),
    "generate_stream": post(json=SLOW_NUMBERS),
}
#: What is not sent twice: streams that have begun, and clients with a session.
SENT_ONCE = {"stream", "session", "WebSocket", "endpoint's stream"}
#: Triton's own streams are sent again if the doubt comes before Triton's first byte, as it may here.
EITHER = {"v2 stream", "generate_stream"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wait_seconds", [0.0, 20.0])
def test_a_request_in_doubt_is_sent_again_unless_a_part_of_its_answer_is_sent(
    way: str, router: Router, wait_seconds: float
) -> None:
    """Where requests do not wait, it is a 503."""
    with ThreadPoolExecutor(1) as callers:
        answer = callers.submit(WAYS[way], router.http)
        wait_until(lambda: answer.done() or (router.notes / "began").exists(), description="the work")
        for model in ("echo", "slow"):
            assert router.generation.report(model, 0)
            router.generation.decide(model, 0, crashed=False)
            router.generation.refuse(model, 0)
        (router.notes / "go-on").touch()
        for model in ("echo", "slow") if wait_seconds else ():
            assert router.generation.admit(model, router.generation.out_since(model))
        status, body = answer.result()
    if not wait_seconds or way in SENT_ONCE or (way in EITHER and status != 200):
        assert (status, body["code"]) == (503, "not_ready"), body
    else:
        assert status == 200, body
