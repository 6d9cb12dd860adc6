"""Stateful sessions through the whole box, with the platform's headers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest
import requests
import websocket

from tests.support.aws import runtime_client
from tests.support.box_fixture import Boxes
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


def test_every_worker_sees_what_another_stored(box: RunningBox) -> None:
    session = open_session(box)
    assert invoke_probe(box, session, keep={"told": "a secret"}).headers[SESSION_HEADER] == session
    processes = set()

    def answered_by_two_workers() -> bool:
        result = invoke_probe(box, session).json()["result"]
        assert result["session"] == {"told": "a secret"}
        processes.add(result["process"])
        return len(processes) > 1

    wait_until(answered_by_two_workers, description="a second worker")


def test_a_websocket_learns_the_id_of_its_new_session_and_goes_on_in_it(box: RunningBox) -> None:
    connection = websocket.create_connection(
        f"ws://127.0.0.1:{box.port}/invocations-bidirectional-stream",
        timeout=30,
        header={SESSION_HEADER: "NEW_SESSION"},
    )
    try:
        connection.send(NEW_SESSION_BODY)
        opened = json.loads(connection.recv())
        session = opened[SESSION_HEADER]
        assert opened["X-Amzn-SageMaker-New-Session-Id"].startswith(f"{session}; Expires=")
        connection.send(json.dumps({"modelname": "probe", "payload": {"keep": {"a": "1"}}}))
        assert json.loads(connection.recv())["result"]["session"] == {"a": "1"}
        assert invoke_probe(box, session).json()["result"]["session"] == {"a": "1"}
        connection.send(CLOSE_BODY)
        assert json.loads(connection.recv()) == {"X-Amzn-SageMaker-Closed-Session-Id": session}
        connection.send(NEW_SESSION_BODY)
        assert json.loads(connection.recv())["code"] == "bad_input"
    finally:
        connection.close()


def test_a_session_outlives_a_worker_that_is_killed(box: RunningBox) -> None:
    session = open_session(box)
    process = invoke_probe(box, session, keep={"a": "1"}).json()["result"]["process"]
    os.kill(process, signal.SIGKILL)
    # A thread that is being killed may still take a connection. nginx sends a session's request only once.
    wait_until(lambda: not Path(f"/proc/{process}").exists(), description="the worker's end")
    assert invoke_probe(box, session).json()["result"]["session"] == {"a": "1"}


def query(folder: Path, statement: str, *values: object) -> list[tuple[int]]:
    """Run a statement in a folder's database of sessions."""
    with contextlib.closing(sqlite3.connect(folder / "sessions.db", isolation_level=None)) as database:
        return database.execute(statement, values).fetchall()


def expire(folder: Path) -> None:
    """Let all sessions in a folder expire."""
    query(folder, "UPDATE sessions SET expires = 0")


def open_from(box: RunningBox, address: str, **headers: str) -> tuple[int, int]:
    """Open a session from an address; return status and Retry-After."""
    connection = http.client.HTTPConnection("127.0.0.1", box.port, 30, source_address=(address, 0))
    with contextlib.closing(connection):
        connection.request(
            "POST", "/invocations", NEW_SESSION_BODY, {SESSION_HEADER: "NEW_SESSION", **headers}
        )
        response = connection.getresponse()
        return response.status, int(response.getheader("Retry-After", "0"))


def check_a_caller_cannot_take_all_sessions(box: RunningBox, lifetime_s: int) -> None:
    forged = [
        {"X-Trireme-Address": f"192.0.2.{number}", "X-Forwarded-For": "192.0.2.1"} for number in range(60)
    ]
    answers = [open_from(box, "127.0.0.2", **headers) for headers in forged]
    assert [status for status, _ in answers] == 45 * [200] + 15 * [429]
    assert all(0 < seconds <= lifetime_s for _, seconds in answers[45:])
    assert open_from(box, "127.0.0.3")[0] == 200


@pytest.mark.exhaustive
def test_sessions_expire_and_are_limited_without_nginx_too(boxes: Boxes, tmp_path: Path) -> None:
    sessions_folder, lifetime_s = tmp_path / "deep" / "sessions", 20
    with boxes.own(
        ("echo",),
        ("platform",),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="probe",
        SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true",
        SAGEMAKER_SESSIONS_EXPIRATION=str(lifetime_s),
        SAGEMAKER_SESSIONS_PATH=str(sessions_folder),
        SAGEMAKER_MODEL_SERVER_WORKERS="2",
        TRIREME_MAX_SESSIONS="50",
        TRIREME_NGINX="off",
    ) as box:
        session = open_session(box)
        ((expires,),) = query(sessions_folder, "SELECT expires FROM sessions WHERE id = ?", session)
        assert 0 < expires - time.time() <= lifetime_s
        assert invoke_probe(box, session).status_code == 200
        expire(sessions_folder)
        assert [invoke_probe(box, session).status_code for _ in range(2)] == [400, 400]
        check_a_caller_cannot_take_all_sessions(box, lifetime_s)
        # Expired sessions are removed although nobody uses them.
        wait_until(lambda: not query(sessions_folder, "SELECT 1 FROM sessions"), description="no session")


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


def test_a_caller_cannot_take_all_sessions(box: RunningBox) -> None:
    store = Path(f"/dev/shm/trireme-{box.box_id()}-sessions")
    expire(store)
    check_a_caller_cannot_take_all_sessions(box, 1200)
    expire(store)
