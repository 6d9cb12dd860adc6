"""Stateful sessions through the whole box, with the platform's headers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest
import requests
import websocket

from tests.support.aws import runtime_client
from tests.support.boxes import RunningBox, wait_until

SESSION_HEADER = "X-Amzn-SageMaker-Session-Id"
NEW_SESSION_BODY, CLOSE_BODY = b'{"requestType":"NEW_SESSION"}', b'{"requestType":"CLOSE"}'


@pytest.fixture
def box(small_box: RunningBox) -> RunningBox:
    return small_box


def open_session(box: RunningBox) -> str:
    response = box.send(NEW_SESSION_BODY, headers={SESSION_HEADER: "NEW_SESSION"})
    assert response.status_code == 200, response.text
    return response.headers[SESSION_HEADER]


def invoke_probe(box: RunningBox, session: str, **members: object) -> requests.Response:
    body = json.dumps({"modelname": "probe", "payload": members}).encode()
    return box.send(body, headers={SESSION_HEADER: session})


def test_every_worker_sees_what_another_stored_also_one_that_was_killed(box: RunningBox) -> None:
    session = open_session(box)
    first = invoke_probe(box, session, keep={"told": "a secret"}).json()["result"]["process"]
    processes = set()

    def answered_by_another_worker() -> bool:
        result = invoke_probe(box, session).json()["result"]
        assert result["session"] == {"told": "a secret"}
        processes.add(result["process"])
        return bool(processes - {first})

    wait_until(answered_by_another_worker, description="a second worker")
    os.kill(first, signal.SIGKILL)
    # A thread that is being killed may still take a connection. nginx sends a session's request only once.
    wait_until(lambda: not Path(f"/proc/{first}").exists(), description="the worker's end")
    assert invoke_probe(box, session).json()["result"]["session"] == {"told": "a secret"}


def test_a_websocket_learns_the_id_of_its_new_session_and_goes_on_in_it(box: RunningBox) -> None:
    url = f"ws://127.0.0.1:{box.port}/invocations-bidirectional-stream"
    headers = {SESSION_HEADER: "NEW_SESSION"}
    with contextlib.closing(websocket.create_connection(url, timeout=30, header=headers)) as connection:

        def ask(message: bytes | str) -> dict[str, object]:
            connection.send(message)
            return dict(json.loads(connection.recv()))

        session = str(ask(NEW_SESSION_BODY)[SESSION_HEADER])
        ask(json.dumps({"modelname": "probe", "payload": {"keep": {"a": "1"}}}))
        assert invoke_probe(box, session).json()["result"]["session"] == {"a": "1"}
        assert ask(CLOSE_BODY) == {"X-Amzn-SageMaker-Closed-Session-Id": session}
        assert ask(NEW_SESSION_BODY)["code"] == "bad_input"


def test_a_real_boto3_client_opens_uses_and_closes_a_session(box: RunningBox) -> None:
    runtime = runtime_client(box.url)
    endpoint = {"EndpointName": "any", "ContentType": "application/json"}
    opened = runtime.invoke_endpoint(**endpoint, SessionId="NEW_SESSION", Body=NEW_SESSION_BODY)
    session = opened["NewSessionId"].split(";")[0]
    body = b'{"modelname":"probe","payload":{"keep":{"a":"b"}}}'
    invoked = runtime.invoke_endpoint(**endpoint, SessionId=session, Body=body)
    assert json.loads(invoked["Body"].read())["result"]["session"] == {"a": "b"}
    closed = runtime.invoke_endpoint(**endpoint, SessionId=session, Body=CLOSE_BODY)
    assert closed["ClosedSessionId"] == session
