"""Fixtures: a namespace of the cluster that ``KUBECONFIG`` names, two pods in it, and a report.

``TRIREME_CLUSTER_IMAGE`` names an image with the models of ``tests/cluster/repository.py`` that the nodes can
pull. Without it the image is built with Podman, and ``TRIREME_CLUSTER_TOOL load IMAGE`` copies it to the nodes; the same
program stops and starts nodes (``stop-node b`` for a node called node-b). ``TRIREME_CLUSTER_ADDRESS`` is a machine that
answers on node ports (127.0.0.1).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from sm.settings import HERE
from tests.cluster.kubernetes import Cluster, Deployment, cluster_tool
from tests.cluster.repository import write_cluster_repository
from tests.support.containers import build_image

IMAGE = "localhost/trireme-cluster:test"
REPORT = HERE / "build" / "cluster" / "report.md"
HEAD = "| what | in | answers | not right | slowest |\n|---|---|---|---|---|\n"


@pytest.fixture(scope="session")
def cluster_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    if given := os.environ.get("TRIREME_CLUSTER_IMAGE"):
        return given
    repository = write_cluster_repository(tmp_path_factory.mktemp("cluster") / "repository")
    build_image(f"IMAGE={IMAGE}", f"MODELS={repository}")
    cluster_tool("load", IMAGE)
    return IMAGE


@pytest.fixture(scope="session")
def cluster(cluster_image: str) -> Iterator[Cluster]:
    """A namespace of its own, deleted afterwards; its report lies in build/cluster/report.md."""
    address = os.environ.get("TRIREME_CLUSTER_ADDRESS", "127.0.0.1")
    cluster = Cluster(f"trireme-test-{os.getpid()}", cluster_image, address)
    cluster.kubectl("create", "namespace", cluster.namespace)
    title = f"{time.strftime('%Y-%m-%d')}, Kubernetes {cluster.version()}\n\n"
    try:
        yield cluster
    finally:
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text(title + HEAD + "\n".join(cluster.report) + "\n")
        cluster.kubectl("delete", "namespace", cluster.namespace, "--wait=false")


@pytest.fixture(scope="module")
def shared_pods(cluster: Cluster) -> Iterator[Deployment]:
    with cluster.deployed("numbers", "--count", "2") as deployment:
        yield deployment


@pytest.fixture
def two_pods(shared_pods: Deployment) -> Deployment:
    """Two ready pods, whatever the test before left."""
    shared_pods.wait_ready(2)
    return shared_pods
