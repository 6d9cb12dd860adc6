"""What an operator does to pods and nodes, under 8 callers: none of them gets anything but the right answer."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.kubernetes import Cluster, Deployment
from tests.support.boxes import wait_until
from tests.support.helm_runner import documents_of, fetch_helm, render_chart


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
            two_pods.set_env(TRIREME_ENDPOINT_NAME=f"update-{number}")
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

    def new_pods_log() -> str:
        new = [name for name in two_pods.pod_names() if name not in old]
        return "".join(two_pods.log(name, *words) for name in new for words in ((), ("--previous",)))

    with two_pods.under_load("a bad setting rolled out, and back"):
        two_pods.set_env(TRIREME_QUEUE="many")
        wait_until(lambda: "TRIREME_QUEUE" in new_pods_log(), 60, "the setting's name in the log")
        assert set(old) <= set(two_pods.pod_names())
        two_pods.cluster.kubectl("rollout", "undo", two_pods.object)
        two_pods.wait_ready(2)
    assert two_pods.pod_names() == old
    lines = [json.loads(line) for line in two_pods.log(old[0]).splitlines() if line.startswith("{")]
    assert not [line for line in lines if line["level"] == "error"]
