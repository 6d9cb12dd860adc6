"""The deployment for KServe: a ``ServingRuntime``, which says how a box runs, and an ``InferenceService``."""

from __future__ import annotations

from typing import Any

from trireme_tools.deploy.scaling import Scaling
from trireme_tools.templates import kubernetes
from trireme_tools.templates.instances import resources
from trireme_tools.templates.kubernetes import CPU_PERCENT, SHARED_MEMORY, Document, check
from trireme_tools.templates.stack import Stack
from trireme_tools.templates.values import GivenValues

#: KServe unpacks the archive of ``storageUri`` here, before it starts the container of this name.
MODELS, CONTAINER = "/mnt/models", "kserve-container"
#: The name of what the box serves: a Triton model repository, with clients in its folder ``code``.
FORMAT = "trireme"
#: A plain Deployment, scaled by Kubernetes' own autoscaler.
MODE = {"serving.kserve.io/deploymentMode": "RawDeployment", "serving.kserve.io/autoscalerClass": "hpa"}


def template(stack: Stack) -> list[Document]:
    """Return the documents. Raises :class:`CommandError` for options that only SageMaker has."""
    check(stack, fetches=True)
    return [serving_runtime(stack), inference_service(stack)]


def serving_runtime(stack: Stack) -> Document:
    """Return how any model repository is served; other services of the namespace may use it too."""
    return _document(
        stack,
        "serving.kserve.io/v1alpha1",
        "ServingRuntime",
        {
            "supportedModelFormats": [{"name": FORMAT, "version": "1", "autoSelect": True}],
            "protocolVersions": ["v1", "v2"],
            "multiModel": False,
            "containers": [container(stack)],
            "volumes": [
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}},
                {"name": "tmp", "emptyDir": {}},
                {"name": "cache", "emptyDir": {}},
            ],
        },
    )


def inference_service(stack: Stack) -> Document:
    values = kubernetes.values(stack)
    storage = {"storageUri": stack.plan.data} if stack.plan.data else {}
    model = {"modelFormat": {"name": FORMAT, "version": "1"}, "runtime": stack.plan.name, **storage}
    grace = GivenValues(values).total("preStopSeconds", "drainSeconds", kubernetes.STOP_S)
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace,
        "securityContext": kubernetes.POD_SECURITY,
    }
    predictor = {**replicas(stack), **pod, "model": model}
    return _document(
        stack, "serving.kserve.io/v1beta1", "InferenceService", {"predictor": predictor}, annotations=MODE
    )


def _document(stack: Stack, api: str, kind: str, spec: dict[str, Any], **metadata: Any) -> Document:
    managed = {"app.kubernetes.io/managed-by": "trireme", "trireme/deployment": stack.plan.name}
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": stack.plan.name, "labels": managed, **metadata},
        "spec": spec,
    }


def replicas(stack: Stack) -> dict[str, Any]:
    if not stack.scaling:
        return {"minReplicas": stack.plan.count, "maxReplicas": stack.plan.count}
    return {
        "minReplicas": stack.scaling.least,
        "maxReplicas": stack.scaling.most,
        "scaleMetric": "cpu",
        "scaleTarget": utilisation(stack.scaling),
    }


def utilisation(scaling: Scaling) -> int:
    """Return the target as CPU percent of a pod's request: Kubernetes does not count requests."""
    targets = {target.kind: target.value for target in scaling.targets}
    return round(targets.get("cpu", CPU_PERCENT))


def container(stack: Stack) -> dict[str, Any]:
    """Return the container of a Deployment, as KServe names it and with the models where KServe puts them."""
    container = kubernetes.container(GivenValues(kubernetes.values(stack)))
    mounts = [mount for mount in container["volumeMounts"] if mount["name"] != "models"]
    environment = list(container["env"])
    if stack.plan.data:
        environment.append({"name": "TRIREME_MODEL_REPOSITORY", "value": MODELS})
    return {
        **container,
        "name": CONTAINER,
        "env": environment,
        "volumeMounts": mounts,
        "resources": resources(stack.plan.instance_type),
    }
