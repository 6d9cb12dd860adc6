"""The requested autoscaling: limits, and the target load of an instance."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from sm.errors import CommandError

#: The namespace of metrics of an endpoint's instances.
INSTANCE_METRICS = "/aws/sagemaker/Endpoints"
#: The metric of each kind of target; SageMaker adds up all cores and all GPUs of an instance.
UTILISATION = {"cpu": "CPUUtilization", "gpu": "GPUUtilization"}
#: The kind of target that counts requests.
REQUESTS = "target"


@dataclass(frozen=True)
class Target:
    """``value`` for each instance: percent of ``cpu`` or ``gpu``, or requests of a ``target``.

    Requests are those of a minute or, for an asynchronous endpoint, those that wait.
    """

    kind: str
    value: float


@dataclass(frozen=True)
class Scaling:
    """Limits and targets. With several targets, the one that needs the most instances decides."""

    least: int
    most: int
    targets: Sequence[Target]


def read(options: argparse.Namespace, has_default: bool = False) -> Scaling | None:
    """Read the options. Raises :class:`CommandError` for a combination that is not possible.

    ``has_default``: there is a default target, so none need be given.
    """
    requests = options.target_invocations
    chosen = {REQUESTS: requests, "cpu": options.target_cpu, "gpu": options.target_gpu}
    targets = [Target(kind, value) for kind, value in chosen.items() if value is not None]
    if not options.autoscale:
        if options.target_cpu or options.target_gpu:
            raise CommandError("--target-cpu and --target-gpu need --autoscale MIN:MAX.")
        return None
    least, most = options.autoscale
    if options.serverless:
        raise CommandError("--serverless cannot be combined with --autoscale: it has no instances.")
    if least == 0 and not options.output:
        raise CommandError("--autoscale 0:MAX needs --async: no other endpoint can have no instance.")
    if not targets and not has_default:
        raise CommandError(
            "--autoscale needs --target-invocations N, the requests a minute that one instance should get, "
            "--target-cpu PERCENT or --target-gpu PERCENT: 'sm invoke -n 100 -c 8' measures what it can do."
        )
    if least == 0 and requests is None:
        raise CommandError(
            "--autoscale 0:MAX needs --target-invocations N: without an instance there is no utilisation."
        )
    return Scaling(least, most, tuple(targets))
