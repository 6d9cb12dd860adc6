"""The deployment as a KServe ``InferenceService``: for several machines that are your own."""

from __future__ import annotations

import re
from typing import Any

from sm.errors import StartError
from sm.tools.deploy.scaling import Scaling
from sm.tools.templates.stack import Stack

PORT = 8080
#: KServe unpacks the archive that STORAGE_URI names here, before the container named so starts.
MODELS, CONTAINER = "/mnt/models", "kserve-container"
#: Seconds that a box may take to start, if nothing is said; and to finish what runs: it drains for 25.
STARTUP, GRACE = 480, 35
#: A plain Deployment, whose number of pods Kubernetes' own autoscaler sets.
MODE = {"serving.kserve.io/deploymentMode": "RawDeployment", "serving.kserve.io/autoscalerClass": "hpa"}
#: Percent of the requested CPU above which Kubernetes adds a pod.
BUSY = 70
#: GPUs of the instance types that have more or less than one; of a family, one.
GPU_FAMILIES = re.compile(r"ml\.(g\d\w*|p\d\w*)\.")
GPUS = {
    "ml.g4dn.12xlarge": 4,
    "ml.g5.12xlarge": 4,
    "ml.g5.24xlarge": 4,
    "ml.g5.48xlarge": 8,
    "ml.g6.12xlarge": 4,
    "ml.g6.24xlarge": 4,
    "ml.g6.48xlarge": 8,
    "ml.p3.8xlarge": 4,
    "ml.p3.16xlarge": 8,
    "ml.p4d.24xlarge": 8,
    "ml.p5.48xlarge": 8,
}


def gpus(instance: str) -> int:
    """How many GPUs such an instance has."""
    return GPUS.get(instance, int(bool(GPU_FAMILIES.match(instance))))


def template(stack: Stack) -> dict[str, Any]:
    """:class:`StartError` for what only SageMaker has."""
    plan = stack.plan
    for given, option in ((plan.mme, "--mme"), (plan.output, "--async"), (plan.serverless, "--serverless")):
        if given:
            raise StartError(
                f"{option} is SageMaker's: a KServe service has a box with its models on each pod."
            )
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", plan.name):
        raise StartError(f"{plan.name!r} is no name for Kubernetes: lower-case letters, digits and hyphens.")
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": plan.name,
            "labels": {"app.kubernetes.io/managed-by": "trireme", "trireme/deployment": plan.name},
            "annotations": MODE,
        },
        "spec": {"predictor": {**replicas(stack), **pod(stack)}},
    }


def replicas(stack: Stack) -> dict[str, Any]:
    if not stack.scaling:
        return {"minReplicas": stack.plan.count, "maxReplicas": stack.plan.count}
    return {
        "minReplicas": stack.scaling.least,
        "maxReplicas": stack.scaling.most,
        "scaleMetric": "cpu",
        "scaleTarget": busy(stack.scaling),
    }


def busy(scaling: Scaling) -> int:
    """Kubernetes looks at the CPU, not at requests: percent of what a pod asks for."""
    targets = {each.kind: each.value for each in scaling.targets}
    if "gpu" in targets:
        raise StartError("--target-gpu is SageMaker's: Kubernetes' own autoscaler sees no GPU.")
    return round(targets.get("cpu", BUSY))


def pod(stack: Stack) -> dict[str, Any]:
    """The predictor's pod. Docker's 64 MB of ``/dev/shm``, Kubernetes' too, are few for tensors."""
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}
    return {
        "terminationGracePeriodSeconds": GRACE,
        "containers": [container(stack)],
        "volumes": [shm],
    }


def container(stack: Stack) -> dict[str, Any]:
    startup = stack.plan.startup_timeout or STARTUP
    ping = {"httpGet": {"path": "/ping", "port": PORT}, "timeoutSeconds": 2}
    return {
        "name": CONTAINER,
        "image": stack.plan.image,
        "args": ["serve"],
        "ports": [{"containerPort": PORT, "protocol": "TCP"}],
        "env": environment(stack),
        "resources": resources(stack.plan.instance_type),
        # The box ends by itself when it cannot go on, so there is no probe for that.
        "startupProbe": {**ping, "periodSeconds": 5, "failureThreshold": -(-startup // 5)},
        "readinessProbe": {**ping, "periodSeconds": 5, "failureThreshold": 3},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - the pod's
    }


def environment(stack: Stack) -> list[dict[str, str]]:
    fetched = {"STORAGE_URI": stack.plan.data, "TRIREME_MODEL_REPOSITORY": MODELS} if stack.plan.data else {}
    named = {**fetched, **stack.plan.env}
    return [{"name": name, "value": value} for name, value in named.items()]


def resources(instance: str) -> dict[str, dict[str, str]]:
    """What a pod asks for: to be changed to what the models take."""
    wanted = {"cpu": "2", "memory": "8Gi"}
    if not (count := gpus(instance)):
        return {"requests": wanted}
    return {"requests": wanted, "limits": {"nvidia.com/gpu": str(count)}}
