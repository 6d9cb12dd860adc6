"""The autoscaling that is asked for: limits, and what each instance should have to do."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from sm.errors import StartError

#: What an endpoint's instances say of themselves.
INSTANCE_METRICS = "/aws/sagemaker/Endpoints"
#: The utilisation that each kind of target is for; SageMaker adds up all cores and all GPUs of an instance.
UTILISATION = {"cpu": "CPUUtilization", "gpu": "GPUUtilization"}
#: The kind of target that counts requests.
REQUESTS = "target"


@dataclass(frozen=True)
class Target:
    """``value`` for each instance: percent of ``cpu`` or ``gpu``; of a ``target`` requests.

    Requests are those of a minute, or where the endpoint is asynchronous those that wait.
    """

    kind: str
    value: float


@dataclass(frozen=True)
class Scaling:
    """Limits, and one target or several: with several, the one that asks for most instances counts."""

    least: int
    most: int
    targets: Sequence[Target]


def read(given: argparse.Namespace, has_default: bool = False) -> Scaling | None:
    """The autoscaling that is asked for; :class:`StartError` where something does not go together.

    ``has_default``: who scales has a target of its own, so none need be given.
    """
    requests = given.target_invocations
    chosen = {REQUESTS: requests, "cpu": given.target_cpu, "gpu": given.target_gpu}
    targets = [Target(kind, value) for kind, value in chosen.items() if value is not None]
    if not given.autoscale:
        if given.target_cpu or given.target_gpu:
            raise StartError("--target-cpu and --target-gpu go with --autoscale MIN:MAX.")
        return None
    least, most = given.autoscale
    if given.serverless:
        raise StartError("--serverless goes without --autoscale: it has no instances.")
    if least == 0 and not given.output:
        raise StartError("--autoscale 0:MAX goes with --async only: else nobody could answer.")
    if not targets and not has_default:
        raise StartError(
            "--autoscale wants --target-invocations N, the requests a minute that one instance should get, "
            "--target-cpu PERCENT or --target-gpu PERCENT: 'sm invoke -n 100 -c 8' measures what it can do."
        )
    if least == 0 and requests is None:
        raise StartError(
            "--autoscale 0:MAX wants --target-invocations N: no instance, no utilisation to go by."
        )
    return Scaling(least, most, tuple(targets))
