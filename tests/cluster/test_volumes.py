"""Models of S3 that the pods fetch at their start, with a volume as their cache."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.kubernetes import Cluster
from tests.cluster.repository import write_cluster_repository
from tests.support.aws import fake_aws
from tests.support.s3 import CREDENTIALS, client

#: For a cluster that makes no volumes.
FOLDER_OF_A_NODE = """
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: NAME}
spec: {accessModes: [ReadWriteOnce, ReadWriteMany], capacity: {storage: 100Mi}, hostPath: {path: /tmp/NAME, type: DirectoryOrCreate}}
"""


#: A claim for the pods' cache.
CACHE = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: cache}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 100Mi}}}
"""


@pytest.fixture
def cache_claim(cluster: Cluster) -> Iterator[str]:
    """A claim that the pods share."""
    documents, name = CACHE, f"{cluster.namespace}-cache"
    folder = Path("/tmp", name)
    if not cluster.get("storageclasses")["items"]:
        documents += FOLDER_OF_A_NODE.replace("NAME", name)
        folder.mkdir()
        folder.chmod(0o777)  # Kubernetes gives a node's folder to no user.
    cluster.kubectl("apply", "--filename", "-", stdin=documents)
    try:
        yield "pvc://cache"
    finally:
        cluster.kubectl("delete", "--filename", "-", "--wait=false", stdin=documents)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def s3_url(cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """The address at which pods reach a fake S3 on this machine; its bucket ``models`` has the tests' models."""
    addresses = cluster.get("nodes")["items"][0]["status"]["addresses"]
    node = next(each["address"] for each in addresses if each["type"] == "InternalIP")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((node, 1))
        host = probe.getsockname()[0]
    repository = write_cluster_repository(tmp_path / "repository")
    with fake_aws(host) as address:
        url = f"http://{address}"
        client(url).create_bucket(Bucket="models")
        for file in filter(Path.is_file, repository.rglob("*")):
            client(url).upload_file(str(file), "models", f"cats/{file.relative_to(repository)}")
        yield url


def test_pods_fetch_from_s3_and_a_rolling_update_starts_from_the_cache(
    cluster: Cluster, s3_url: str, cache_claim: str
) -> None:
    variables = {**CREDENTIALS, "AWS_ENDPOINT_URL": s3_url}
    options = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    source = ("--model-data", "s3://models/cats/", "--cache", cache_claim)
    with cluster.deployed("fetched", "--count", "2", *source, *options) as deployment:
        first = deployment.pod_names()
        # The pods share the cache, so one of them has fetched.
        assert sorted(deployment.metric(pod, "trireme_fetch_bytes") > 0 for pod in first) == [False, True]
        with deployment.under_load("a rolling update of pods that fetch from S3 into a cache"):
            cluster.kubectl("rollout", "restart", deployment.object)
            deployment.wait_rolled_out()
            deployment.wait_ready(2)
        assert not {*first} & {*deployment.pod_names()}
        assert [deployment.metric(pod, "trireme_fetch_bytes") for pod in deployment.pod_names()] == [0, 0]
