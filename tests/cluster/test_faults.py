"""What dies in a cluster, under 8 callers."""

from __future__ import annotations

import os
import time

import pytest

from tests.support.kubernetes_cluster import Deployment, cluster_tool, wait_slowly


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("Triton", "tritonserver"),
        ("a model's process", "triton_python_backend_stub"),
        ("a worker of the router", "sm.server.worker"),
    ],
)
def test_a_killed_process_is_not_noticed(two_pods: Deployment, what: str, words: str) -> None:
    with two_pods.under_load(f"kill -9 of {what} in one of two pods", settle_s=5):
        two_pods.kill(two_pods.pod_names()[0], words)
        time.sleep(10)
        two_pods.wait_ready(2)


@pytest.mark.skipif("TRIREME_CLUSTER_TOOL" not in os.environ, reason="nothing here stops a node")
def test_what_is_lost_with_a_node_ends_when_the_node_is_marked_as_gone(two_pods: Deployment) -> None:
    """Nobody can know earlier: callers wait for packets that never come."""
    node = "node-b"

    def is_gone() -> bool:
        conditions = two_pods.cluster.get("node", node)["status"]["conditions"]
        return any(each["type"] == "Ready" and each["status"] != "True" for each in conditions)

    with two_pods.under_load(
        "a node cut off, until it is marked as gone", allowed=("hang", "reset", "refused")
    ):
        cluster_tool("stop-node", node.removeprefix("node-"))
        try:
            wait_slowly(is_gone, 120, "the node's mark")
        except BaseException:
            cluster_tool("start-node", node.removeprefix("node-"))
            raise
    try:
        with two_pods.under_load("the same node, afterwards"):
            time.sleep(10)
    finally:
        cluster_tool("start-node", node.removeprefix("node-"))
        wait_slowly(lambda: not is_gone(), 120, "the node's return")
