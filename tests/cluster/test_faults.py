"""What dies in a cluster, under 8 callers."""

from __future__ import annotations

import os
import time
from typing import Literal

import pytest

from tests.cluster.kubernetes import CALLERS, Deployment, cluster_tool, wait_slowly


@pytest.mark.parametrize(
    ("what", "words", "age"),
    [
        ("Triton", "tritonserver", "oldest"),
        ("a model's process", "triton_python_backend_stub", "oldest"),
        ("a worker of the router", "sm.server.worker", "youngest"),
        ("the router's master", "sm.server.worker", "oldest"),
        ("the control plane", "sm.server.control_plane", "oldest"),
    ],
)
def test_a_killed_process_is_not_noticed(
    two_pods: Deployment, what: str, words: str, age: Literal["oldest", "youngest"]
) -> None:
    with two_pods.under_load(f"kill -9 of {what} in one of two pods", settle_s=5):
        two_pods.kill(two_pods.pod_names()[0], words, age)
        time.sleep(10)
        two_pods.wait_ready(2)


def test_a_killed_worker_of_nginx_breaks_only_the_connections_that_it_holds(two_pods: Deployment) -> None:
    with two_pods.under_load("kill -9 of nginx's worker in one of two pods", allowed=("reset",)) as wrong:
        two_pods.kill(two_pods.pod_names()[0], "nginx: worker")
        time.sleep(5)
    assert wrong["reset"] <= CALLERS


@pytest.mark.skipif("TRIREME_CLUSTER_TOOL" not in os.environ, reason="nothing here stops a node")
def test_what_is_lost_with_a_node_ends_when_the_node_is_marked_as_gone(two_pods: Deployment) -> None:
    """Nobody can know earlier: callers wait for packets that never come."""
    node = "node-b"

    def is_gone() -> bool:
        conditions = two_pods.cluster.get("node", node)["status"]["conditions"]
        return any(each["type"] == "Ready" and each["status"] != "True" for each in conditions)

    lost = ("hang", "reset", "refused")
    try:
        with two_pods.under_load("a node cut off, until it is marked as gone", allowed=lost):
            cluster_tool("stop-node", node.removeprefix("node-"))
            wait_slowly(is_gone, 120, "the node's mark")
        with two_pods.under_load("the same node, afterwards"):
            time.sleep(10)
    finally:
        cluster_tool("start-node", node.removeprefix("node-"))
        wait_slowly(lambda: not is_gone(), 120, "the node's return")
