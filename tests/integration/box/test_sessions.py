"""Stateful sessions through the whole box, by header as the platform sends them."""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import boto3
import botocore.config
import pytest
import requests

from tests.support.boxes import CLIENT_FOLDERS, RunningBox, running_box, wait_until
from tests.support.tritons import MODELS

CLIENTS = CLIENT_FOLDERS / "platform"
HEADER = "X-Amzn-SageMaker-Session-Id"
NEW, CLOSE = b'{"requestType":"NEW_SESSION"}', b'{"requestType":"CLOSE"}'


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sessions")
    MODELS["echo"].write(folder / "model" / "echo")
    return folder / "model"


@pytest.fixture(scope="module")
def box(repository: Path) -> Iterator[RunningBox]:
    with running_box(
        repository.parent,
        repository,
        clients=(CLIENTS,),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="probe",
        SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true",
        SAGEMAKER_MODEL_SERVER_WORKERS="3",
    ) as started:
        yield started


def opened(box: RunningBox) -> str:
    response = box.send(NEW, headers={HEADER: "NEW_SESSION"})
    assert response.status_code == 200, response.text
    return response.headers[HEADER]


def probe(box: RunningBox, session: str, **members: object) -> requests.Response:
    body = json.dumps({"modelname": "probe", "payload": members}).encode()
    return box.send(body, headers={HEADER: session})


def test_a_new_session_has_an_id_and_says_when_it_ends(box: RunningBox) -> None:
    response = box.send(NEW, headers={HEADER: "NEW_SESSION"})
    identity, expires = response.headers["X-Amzn-SageMaker-New-Session-Id"].split("; Expires=")
    assert response.headers[HEADER] == identity
    assert re.fullmatch(r"[0-9a-f-]{36}", identity)
    end = datetime.datetime.strptime(expires, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.timezone.utc)
    left = (end - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
    assert 1200 - 60 < left <= 1200


def test_any_worker_has_what_another_kept(box: RunningBox) -> None:
    session = opened(box)
    assert probe(box, session, keep={"told": "a secret"}).headers[HEADER] == session
    seen = set()

    def another() -> bool:
        result = probe(box, session).json()["result"]
        assert result["session"] == {"told": "a secret"}
        seen.add(result["process"])
        return len(seen) > 1

    wait_until(another, description="a second worker")


def test_a_session_outlives_a_worker_that_is_killed(box: RunningBox) -> None:
    session = opened(box)
    process = probe(box, session, keep={"a": "1"}).json()["result"]["process"]
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: process not in box.workers(), description="its end")
    assert probe(box, session).json()["result"]["session"] == {"a": "1"}


def test_two_sessions_have_nothing_in_common(box: RunningBox) -> None:
    first, second = opened(box), opened(box)
    probe(box, first, keep={"a": "1"})
    assert probe(box, second).json()["result"]["session"] == {}


def test_a_request_outside_of_a_session_has_none(box: RunningBox) -> None:
    response = box.invoke("probe", {})
    assert response.json()["result"]["session"] is None
    assert HEADER not in response.headers


def test_a_closed_session_is_a_400(box: RunningBox) -> None:
    session = opened(box)
    response = box.send(CLOSE, headers={HEADER: session})
    assert (response.status_code, response.headers["X-Amzn-SageMaker-Closed-Session-Id"]) == (200, session)
    for again in (box.send(CLOSE, headers={HEADER: session}), probe(box, session)):
        assert (again.status_code, again.json()["code"]) == (400, "bad_input")
        assert session in again.json()["error"]


@pytest.mark.parametrize("key", ["k" * 255, "/" * 100, "k" * 100_000])
def test_a_key_that_is_too_long_is_the_callers_400(box: RunningBox, key: str) -> None:
    session = opened(box)
    response = probe(box, session, keep={key: "value"})
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")
    assert "254 bytes" in response.json()["error"]
    assert probe(box, session, keep={"k": "value"}).json()["result"]["session"] == {"k": "value"}


@pytest.mark.parametrize(
    "identity",
    ["../../etc/passwd", "/dev/shm", "x" * 8000, "0" * 36, "", "new_session", "a;b=c", "%2e%2e"],
)
def test_what_is_no_id_is_a_400(box: RunningBox, identity: str) -> None:
    response = probe(box, identity)
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")
    assert "there is no session" in response.json()["error"]


def test_a_new_session_needs_its_body(box: RunningBox) -> None:
    response = probe(box, "NEW_SESSION")
    assert response.status_code == 400
    assert "requestType" in response.json()["error"]


def test_a_real_boto3_client_opens_uses_and_closes_one(box: RunningBox) -> None:
    runtime = boto3.client(
        "sagemaker-runtime",
        region_name="eu-west-1",
        endpoint_url=box.url,
        aws_access_key_id="any",
        aws_secret_access_key="any",
        config=botocore.config.Config(retries={"max_attempts": 0}),
    )
    endpoint = {"EndpointName": "any", "ContentType": "application/json"}
    new = runtime.invoke_endpoint(**endpoint, SessionId="NEW_SESSION", Body=NEW)
    session = new["NewSessionId"].split(";")[0]
    body = b'{"modelname":"probe","payload":{"keep":{"a":"b"}}}'
    answer = runtime.invoke_endpoint(**endpoint, SessionId=session, Body=body)
    assert json.loads(answer["Body"].read())["result"]["session"] == {"a": "b"}
    closed = runtime.invoke_endpoint(**endpoint, SessionId=session, Body=CLOSE)
    assert closed["ClosedSessionId"] == session


def test_a_session_expires_and_lies_where_it_is_told_to(repository: Path, tmp_path: Path) -> None:
    with running_box(
        tmp_path,
        repository,
        clients=(CLIENTS,),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="probe",
        SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true",
        SAGEMAKER_SESSIONS_EXPIRATION="4",
        TRIREME_MAX_SESSIONS="3",
        SAGEMAKER_SESSIONS_PATH=str(tmp_path / "deep" / "sessions"),
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
    ) as box:
        session = opened(box)
        assert (tmp_path / "deep" / "sessions" / session).is_dir()
        wait_until(lambda: probe(box, session).status_code == 400, description="its end")
        assert "expired" in probe(box, session).json()["error"] or "no session" in probe(box, session).text
        answers = [box.send(NEW, headers={HEADER: "NEW_SESSION"}) for _ in range(8)]
        refused = [response for response in answers if response.status_code != 200]
        assert {response.status_code for response in refused} == {429}
        assert all("3 sessions are open" in response.json()["error"] for response in refused)
        assert all("Retry-After" in response.headers for response in refused)
        # Nobody asks for them any more.
        home = tmp_path / "deep" / "sessions"
        wait_until(lambda: not list(home.iterdir()), description="the files of all sessions gone")
        opened(box)


def test_sessions_are_gone_with_the_box_and_off_unless_asked_for(repository: Path, tmp_path: Path) -> None:
    with running_box(tmp_path, repository, clients=(CLIENTS,), SAGEMAKER_MODEL_SERVER_WORKERS="1") as box:
        response = box.send(NEW, headers={HEADER: "NEW_SESSION"})
        assert (response.status_code, response.json()["code"]) == (400, "bad_input")
        assert "SAGEMAKER_ENABLE_STATEFUL_SESSIONS" in response.json()["error"]
        box_id = box.box_id()
    assert list(Path("/dev/shm").glob(f"trireme-{box_id}*")) == []
