"""Limits of memory and processors."""

from __future__ import annotations

import time

from tests.support.kubernetes_cluster import Cluster, wait_slowly


def test_a_memory_limit_that_is_too_small_is_named_in_the_log(cluster: Cluster) -> None:
    with cluster.deployed("small", "--memory", "300Mi", wait_ready=False) as deployment:

        def log() -> str:
            return "".join(
                deployment.log(name, *words)
                for name in deployment.pod_names()
                for words in ((), ("--previous",))
            )

        wait_slowly(lambda: "memory ran out" in log(), 120, "the log's sentence")
        cluster.report.append('| a memory limit of 300 MiB | | | the log says "memory ran out" | |')


def test_a_tight_processor_limit_makes_answers_slow_and_none_wrong(cluster: Cluster) -> None:
    with cluster.deployed("tight", wait_ready=False) as deployment:
        cluster.kubectl("set", "resources", deployment.object, "--limits=cpu=400m,memory=2Gi")
        deployment.wait_rolled_out()
        deployment.wait_ready(1)
        (pod,) = deployment.pod_names()
        with deployment.under_load("a processor limit of 0.4, one pod, 30 s"):
            time.sleep(24)
        assert deployment.pod_names() == [pod]
