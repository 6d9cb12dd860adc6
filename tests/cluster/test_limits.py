"""Limits of memory and processors."""

from __future__ import annotations

import time

import pytest

from tests.cluster.kubernetes import Cluster, wait_slowly

#: A start takes several seconds of a whole processor.
SLOW_START_S = 300.0


def test_a_memory_limit_that_is_too_small_is_named_in_the_log(cluster: Cluster) -> None:
    with cluster.deployed("small", "--memory", "128Mi", wait_ready=False) as deployment:

        def log() -> str:
            return "".join(
                deployment.log(name, *words)
                for name in deployment.pod_names()
                for words in ((), ("--previous",))
            )

        wait_slowly(lambda: "memory ran out" in log(), 120, "the log's sentence")
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
