"""Stateful sessions behind a Service of two pods."""

from __future__ import annotations

from requests import Response

from tests.cluster.kubernetes import Cluster, Deployment
from tests.support.boxes import wait_until

COUNT = {"modelname": "counter", "payload": {"text": "once more"}}


def open_session(deployment: Deployment) -> str:
    answer = deployment.invoke({"requestType": "NEW_SESSION"}, session="NEW_SESSION")
    assert answer.status_code == 200, answer.text
    return answer.headers["X-Amzn-SageMaker-Session-Id"]


def test_a_session_stays_in_its_pod_only_with_sticky_sessions(cluster: Cluster) -> None:
    options = ("--count", "2", "--sticky-sessions", "--env", "SAGEMAKER_ENABLE_STATEFUL_SESSIONS=true")
    with cluster.deployed("sessions", *options) as deployment:
        deployment.wait_ready(2)
        session = open_session(deployment)
        # Each on a new connection.
        answers = [deployment.invoke(COUNT, session).json() for _ in range(40)]
        assert [answer.get("result") for answer in answers] == list(range(1, 41)), answers

        cluster.kubectl("patch", "service", "sessions", "--patch", '{"spec": {"sessionAffinity": "None"}}')

        def refusals() -> list[Response]:
            answers = [deployment.invoke(COUNT, session) for _ in range(20)]
            return [answer for answer in answers if answer.status_code != 200]

        refusal = wait_until(refusals, 20, "a request at the other pod")[0]
        assert refusal.status_code == 400
        assert "another box has it" in refusal.json()["error"]
        cluster.report.append("| 40 requests of a session, each on a new connection | | 40 | 0 | |")
