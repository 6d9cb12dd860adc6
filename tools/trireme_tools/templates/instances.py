"""Convert an instance type of SageMaker to the resources of a pod."""

from __future__ import annotations

import re

#: Families of instance types with GPUs.
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
    """Return the number of GPUs of an instance type."""
    return GPUS.get(instance, int(bool(GPU_FAMILIES.match(instance))))


def resources(instance: str) -> dict[str, dict[str, str]]:
    """Return the resource requests of a pod, to be adapted to the models."""
    requests = {"cpu": "2", "memory": "8Gi"}
    if not (count := gpus(instance)):
        return {"requests": requests}
    return {"requests": requests, "limits": {"nvidia.com/gpu": str(count)}}
