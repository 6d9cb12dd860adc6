"""More pods give more answers, and callers that keep their connections find a new pod."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.cluster.kubernetes import Cluster, Deployment
from tests.cluster.repository import WAIT, samples
from tests.support.boxes import wait_until
from tests.support.faults.callers import Callers

CALLERS, SECONDS = 32, 20.0
#: Of what so many times one pod's answers would be.
LEAST_OF_LINEAR = 0.95


@pytest.fixture(scope="module")
def deployment(cluster: Cluster) -> Iterator[Deployment]:
    with cluster.deployed("growing") as deployment:
        yield deployment


def answers_a_second(deployment: Deployment, kept_of_two: int) -> float:
    address = deployment.cluster.address
    callers = Callers(deployment.port, samples(WAIT), CALLERS, host=address, kept_of_two=kept_of_two).start()
    time.sleep(3)
    before = callers.outcomes()
    time.sleep(SECONDS)
    after = callers.outcomes()
    callers.stop()
    assert set(after) == {"200"}, after
    return (after["200"] - before["200"]) / SECONDS


def test_two_and_four_pods_answer_two_and_four_times_as_much(deployment: Deployment) -> None:
    for kept_of_two, connections in ((0, "new"), (2, "kept")):
        of_one = 0.0
        for count in (1, 2, 4):
            deployment.scale(count)
            rate = answers_a_second(deployment, kept_of_two)
            of_one = of_one or rate
            deployment.cluster.report.append(
                f"| {count} pods, a model that waits 50 ms, {CALLERS} callers, {connections} connections | "
                f"{SECONDS:.0f} s | {rate:.1f} a second, {rate / of_one / count:.2f} of linear | 0 | |"
            )
            assert rate >= LEAST_OF_LINEAR * count * of_one


def test_an_autoscaler_adds_pods_for_requests_in_flight_and_removes_them_afterwards(cluster: Cluster) -> None:
    with cluster.deployed("scaled", "--autoscale", "2:4", "--target-in-flight", "1") as deployment:
        deployment.wait_ready(2)
        with deployment.under_load("an autoscaler of 2 to 4 pods by what is in flight", WAIT):
            deployment.wait_ready(4)
        deployment.wait_ready(2)


def test_callers_that_keep_their_connections_find_a_new_pod(deployment: Deployment) -> None:
    deployment.scale(1)
    old = deployment.pod_names()
    callers = Callers(deployment.port, samples(), 8, host=deployment.cluster.address, kept_of_two=2).start()
    try:
        deployment.scale(2)
        (new,) = set(deployment.pod_names()) - set(old)
        wait_until(
            lambda: deployment.metric(new, "trireme_invocations_total") > 0, 60, "a request at the new pod"
        )
    finally:
        callers.stop()
    assert set(callers.outcomes()) == {"200"}
