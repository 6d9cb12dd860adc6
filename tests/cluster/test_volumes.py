"""Models on a volume, and models of S3 that the pods fetch at their start, with a volume as their cache."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from tests.cluster.kubernetes import PYTHON, Cluster, Deployment, wait_slowly
from tests.cluster.repository import DOUBLE, write_cluster_repository
from tests.support.aws import fake_aws
from tests.support.s3 import CREDENTIALS, client

#: A claim, and a pod that copies one of the image's models into it.
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: models}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 100Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: copy}
spec:
  restartPolicy: Never
  volumes: [{name: models, persistentVolumeClaim: {claimName: models}}]
  containers:
    - name: copy
      image: IMAGE
      imagePullPolicy: IfNotPresent
      securityContext: {runAsUser: 0}
      workingDir: /opt/trireme/repository
      command: [sh, -c, "mkdir -p /models/team && cp -r --parents MODEL code/MODEL.py /models/team"]
      volumeMounts: [{name: models, mountPath: /models}]
"""
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


@contextmanager
def claimed(cluster: Cluster, documents: str, name: str) -> Iterator[None]:
    """Apply documents with a claim; ``name`` is the volume's, if the cluster makes none by itself."""
    folder = Path("/tmp", name)
    if not cluster.get("storageclasses")["items"]:
        documents += FOLDER_OF_A_NODE
        folder.mkdir()
        folder.chmod(0o777)  # Kubernetes gives a node's folder to no user.
    for word, value in (("IMAGE", cluster.image), ("MODEL", DOUBLE), ("NAME", name)):
        documents = documents.replace(word, value)
    cluster.kubectl("apply", "--filename", "-", stdin=documents)
    try:
        yield
    finally:
        cluster.kubectl("delete", "--filename", "-", "--wait=false", stdin=documents)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def filled_claim(cluster: Cluster) -> Iterator[str]:
    with claimed(cluster, CLAIM, f"{cluster.namespace}-models"):

        def is_copied() -> bool:
            return bool(cluster.get("pod", "copy")["status"]["phase"] == "Succeeded")

        wait_slowly(is_copied, 60, "the copied model")
        yield "pvc://models/team"


@pytest.fixture
def s3_url(cluster: Cluster, tmp_path: Path) -> Iterator[str]:
    """The address at which pods reach a fake S3 on this machine; its bucket ``models`` has the tests' models."""
    node = next(
        address["address"]
        for address in cluster.get("nodes")["items"][0]["status"]["addresses"]
        if address["type"] == "InternalIP"
    )
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


def test_the_models_of_a_volume_claim_are_served_and_no_others(cluster: Cluster, filled_claim: str) -> None:
    with cluster.deployed("claimed", "--model-data", filled_claim) as deployment:
        models = requests.get(f"{deployment.url}/models", timeout=10).json()["models"]
        assert [model["modelName"] for model in models] == [DOUBLE]
        with deployment.under_load("models on a volume claim"):
            pass


def test_pods_fetch_from_s3_and_a_rolling_update_starts_from_the_cache(cluster: Cluster, s3_url: str) -> None:
    variables = {**CREDENTIALS, "AWS_ENDPOINT_URL": s3_url}
    options = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    source = ("--model-data", "s3://models/cats/", "--cache", "pvc://cache")
    with (
        claimed(cluster, CACHE, f"{cluster.namespace}-cache"),
        cluster.deployed("fetched", "--count", "2", *source, *options) as deployment,
    ):
        first = deployment.pod_names()
        # The pods share the cache, so one of them has fetched.
        assert sorted(fetched_bytes(deployment, pod) > 0 for pod in first) == [False, True]
        with deployment.under_load("a rolling update of pods that fetch from S3 into a cache"):
            cluster.kubectl("rollout", "restart", deployment.object)
            deployment.wait_rolled_out()
            deployment.wait_ready(2)
        assert not {*first} & {*deployment.pod_names()}
        assert [fetched_bytes(deployment, pod) for pod in deployment.pod_names()] == [0, 0]


def fetched_bytes(deployment: Deployment, pod: str) -> float:
    code = "import urllib.request as u; print(u.urlopen('http://localhost:8080/metrics').read().decode())"
    text = deployment.cluster.kubectl("exec", pod, "--", PYTHON, "-c", code)
    return next(
        float(line.split()[1]) for line in text.splitlines() if line.startswith("trireme_fetch_bytes ")
    )
