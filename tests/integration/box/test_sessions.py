"""Stateful sessions through the whole box, with the platform's headers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import sqlite3
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


def open_from(box: RunningBox, address: str, **headers: str) -> tuple[int, int]:
    """Open a session from an address; return status and Retry-After."""
    connection = http.client.HTTPConnection("127.0.0.1", box.port, 30, source_address=(address, 0))
    with contextlib.closing(connection):
        connection.request(
            "POST", "/invocations", NEW_SESSION_BODY, {SESSION_HEADER: "NEW_SESSION", **headers}
        )
        response = connection.getresponse()
        return response.status, int(response.getheader("Retry-After", "0"))


def test_a_caller_cannot_take_all_sessions(box: RunningBox) -> None:
    database = Path(f"/dev/shm/trireme-{box.box_id()}-sessions/sessions.db")

    def query(statement: str) -> list[tuple[int]]:
        with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    session = open_session(box)
    query("UPDATE sessions SET expires = 0")
    assert invoke_probe(box, session).status_code == 400
    forged = [
        {"X-Trireme-Address": f"192.0.2.{number}", "X-Forwarded-For": "192.0.2.1"} for number in range(60)
    ]
    answers = [open_from(box, "127.0.0.2", **headers) for headers in forged]
    assert [status for status, _ in answers] == 45 * [200] + 15 * [429]
    assert all(0 < seconds <= 1200 for _, seconds in answers[45:])
    assert open_from(box, "127.0.0.3")[0] == 200
    query("UPDATE sessions SET expires = 0")
