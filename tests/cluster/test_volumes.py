"""Models on a volume: ``--model-data pvc://CLAIM/FOLDER``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.cluster.kubernetes import Cluster, wait_slowly
from tests.cluster.repository import DOUBLE

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
spec: {accessModes: [ReadWriteOnce], capacity: {storage: 100Mi}, hostPath: {path: /tmp/NAME, type: DirectoryOrCreate}}
"""


@pytest.fixture
def filled_claim(cluster: Cluster) -> Iterator[str]:
    documents = CLAIM if cluster.get("storageclasses")["items"] else CLAIM + FOLDER_OF_A_NODE
    for word, value in (("IMAGE", cluster.image), ("MODEL", DOUBLE), ("NAME", cluster.namespace)):
        documents = documents.replace(word, value)
    cluster.kubectl("apply", "--filename", "-", stdin=documents)
    try:

        def is_copied() -> bool:
            return bool(cluster.get("pod", "copy")["status"]["phase"] == "Succeeded")

        wait_slowly(is_copied, 60, "the copied model")
        yield "pvc://models/team"
    finally:
        cluster.kubectl("delete", "--filename", "-", "--wait=false", stdin=documents)
        shutil.rmtree(Path("/tmp", cluster.namespace), ignore_errors=True)


def test_the_models_of_a_volume_claim_are_served_and_no_others(cluster: Cluster, filled_claim: str) -> None:
    with cluster.deployed("claimed", "--model-data", filled_claim) as deployment:
        models = requests.get(f"{deployment.url}/models", timeout=10).json()["models"]
        assert [model["modelName"] for model in models] == [DOUBLE]
        with deployment.under_load("models on a volume claim"):
            pass
