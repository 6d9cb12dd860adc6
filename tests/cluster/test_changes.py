"""What an operator does to pods and nodes, under 8 callers: none of them gets anything but the right answer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.kubernetes import Cluster, Deployment, wait_slowly
from tests.support.boxes import wait_until
from tests.support.helm_runner import documents_of, fetch_helm, render_chart

#: A start takes several seconds of a whole processor.
SLOW_START_S = 300.0


def test_helms_output_is_served(cluster: Cluster, tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    cluster.template("helmed", "--format", "helm", "--out", str(chart))
    rendered = render_chart(fetch_helm(tmp_path / "helm"), chart, "helmed", {"replicas": 2})
    with (
        cluster.applied("helmed", documents_of(rendered)) as deployment,
        deployment.under_load("Helm's output, applied"),
    ):
        deployment.wait_ready(2)


def test_a_rolling_update_is_not_noticed(two_pods: Deployment) -> None:
    for number in range(2):
        with two_pods.under_load("rolling update"):
            two_pods.set_env(f"TRIREME_ENDPOINT_NAME=update-{number}")
            two_pods.wait_rolled_out()
            two_pods.wait_ready(2)


def test_scaling_is_not_noticed(two_pods: Deployment) -> None:
    with two_pods.under_load("scaling 2, 1, 3, 2"):
        for count in (1, 3, 2):
            two_pods.scale(count)


def test_a_deleted_pod_is_not_missed(two_pods: Deployment) -> None:
    with two_pods.under_load("a pod deleted"):
        two_pods.cluster.kubectl("delete", "pod", two_pods.pod_names()[0])
        two_pods.wait_ready(2)


def test_a_drained_node_is_not_missed(two_pods: Deployment) -> None:
    node = two_pods.pods()[0]["spec"]["nodeName"]
    kubectl = two_pods.cluster.kubectl
    try:
        with two_pods.under_load("a node drained"):
            only_ours = f"--pod-selector=app.kubernetes.io/instance={two_pods.name}"
            # Before 1.20 the option was --delete-local-data.
            kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", only_ours)
            two_pods.wait_ready(2)
            assert {pod["spec"]["nodeName"] for pod in two_pods.pods()} - {node}
    finally:
        kubectl("uncordon", node)


def test_a_bad_setting_never_replaces_a_pod_that_serves_and_the_log_names_it(two_pods: Deployment) -> None:
    old = two_pods.pod_names()
    with two_pods.under_load("a bad setting rolled out, and back"):
        two_pods.set_env("TRIREME_QUEUE=many")
        wait_until(lambda: "TRIREME_QUEUE" in two_pods.log(*{*two_pods.pod_names()} - {*old}), 60, "the log")
        assert set(old) <= set(two_pods.pod_names())
        two_pods.cluster.kubectl("rollout", "undo", two_pods.object)
        two_pods.wait_ready(2)
    assert two_pods.pod_names() == old


def test_a_memory_limit_that_is_too_small_is_named_in_the_log(cluster: Cluster) -> None:
    with cluster.deployed("small", "--memory", "128Mi", wait_ready=False) as deployment:
        wait_slowly(lambda: "memory ran out" in deployment.log(*deployment.pod_names()), 120, "the log")
        cluster.report.append('| a memory limit of 128 MiB | | | the log says "memory ran out" | |')


@pytest.mark.parametrize("processors", ["400m", "150m"])
def test_a_tight_processor_limit_makes_answers_slow_and_none_wrong(cluster: Cluster, processors: str) -> None:
    with cluster.deployed("tight", wait_ready=False) as deployment:
        limits = f"--limits=cpu={processors},memory=2Gi"
        cluster.kubectl("set", "resources", deployment.object, limits, "--requests=cpu=100m,memory=1Gi")
        deployment.wait_rolled_out(SLOW_START_S)
        deployment.wait_ready(1)
        (pod,) = deployment.pod_names()
        with deployment.under_load(f"a processor limit of {processors}, one pod, 30 s"):
            time.sleep(24)
        assert deployment.pod_names() == [pod]


def test_a_session_stays_in_its_pod_only_with_sticky_sessions(cluster: Cluster) -> None:
    options = ("--count", "2", "--sticky-sessions", "--env", "SAGEMAKER_ENABLE_STATEFUL_SESSIONS=true")
    with cluster.deployed("sessions", *options) as deployment:
        deployment.wait_ready(2)
        opened = deployment.invoke({"requestType": "NEW_SESSION"}, session="NEW_SESSION")
        session = opened.headers["X-Amzn-SageMaker-Session-Id"]
        count = {"modelname": "counter", "payload": {"text": "more"}}
        # Each on a new connection.
        answers = [deployment.invoke(count, session).json() for _ in range(40)]
        assert [answer.get("result") for answer in answers] == list(range(1, 41)), answers

        cluster.kubectl("patch", "service", "sessions", "--patch", '{"spec": {"sessionAffinity": "None"}}')
        wait_until(lambda: deployment.invoke(count, session).status_code == 400, 20, "the other pod")
        cluster.report.append("| 40 requests of a session, each on a new connection | | 40 | 0 | |")
