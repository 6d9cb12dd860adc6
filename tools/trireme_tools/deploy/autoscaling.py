"""Scale an endpoint by requests, CPU or GPU, or if it is asynchronous by its backlog."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sm.errors import CommandError
from trireme_tools import documents

DOCUMENTS = documents.read(__file__, "scaling.yaml")
#: The kind of target that counts requests.
REQUESTS = "target"
KINDS = (REQUESTS, "cpu", "gpu")
#: The policy that starts the first instance or copy.
WAKE = "wake"
#: The kinds of scaling: instances of an endpoint, those of an asynchronous one, or copies of a component.
ENDPOINT, QUEUE, COMPONENT = "endpoint", "queue", "component"


@dataclass(frozen=True)
class ScalingTarget:
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
    targets: Sequence[ScalingTarget]
    of: str = ENDPOINT

    def to_text(self) -> str:
        """Return it as the value of a tag: ``1:4 target=60.0 cpu=70.0``."""
        targets = (f"{target.kind}={target.value}" for target in self.targets)
        return " ".join([f"{self.least}:{self.most}", *targets])

    @classmethod
    def of_text(cls, text: str, of: str) -> Scaling:
        """Read what :meth:`to_text` wrote."""
        limits, *targets = text.split()
        least, _, most = limits.partition(":")
        pairs = (target.split("=") for target in targets)
        return cls(int(least), int(most), [ScalingTarget(kind, float(value)) for kind, value in pairs], of)


def read(options: argparse.Namespace, has_default: bool = False, component: bool = False) -> Scaling | None:
    """Read the options, of an inference component too. Raises :class:`CommandError` for a combination that is
    not possible.

    ``has_default``: there is a default target, so none need be given.
    """
    requests = options.target_invocations
    chosen = {REQUESTS: requests, "cpu": options.target_cpu, "gpu": options.target_gpu}
    targets = [ScalingTarget(kind, value) for kind, value in chosen.items() if value is not None]
    if not options.autoscale:
        if options.target_cpu or options.target_gpu:
            raise CommandError("--target-cpu and --target-gpu need --autoscale MIN:MAX.")
        return None
    least, most = options.autoscale
    if component and len(targets) != int(requests is not None):
        raise CommandError("a component is scaled by --target-invocations only, the requests of each copy.")
    if least == 0 and not (options.output or component):
        raise CommandError(
            "--autoscale 0:MAX needs --async or --component: no other endpoint can have no instance."
        )
    if not targets and not has_default:
        raise CommandError(
            "--autoscale needs --target-invocations N, the requests a minute that one instance should get, "
            "--target-cpu PERCENT or --target-gpu PERCENT: 'sm invoke -n 100 -c 8' measures what it can do."
        )
    if least == 0 and requests is None:
        raise CommandError(
            "--autoscale 0:MAX needs --target-invocations N: without an instance there is no utilisation."
        )
    kind = COMPONENT if component else QUEUE if options.output else ENDPOINT
    return Scaling(least, most, tuple(targets), kind)


if TYPE_CHECKING:  # templates need no AWS, and so no boto3
    from trireme_tools.deploy.account import Account

SERVICE = "application-autoscaling"


def kind_of(configuration: Mapping[str, Any]) -> str:
    """Return what is scaled of an endpoint with this configuration."""
    return QUEUE if configuration.get("AsyncInferenceConfig") else ENDPOINT


def scalable_resource(name: str, of: str = ENDPOINT) -> dict[str, Any]:
    """Return the resource that is scaled, as each call needs it."""
    return dict(documents.fill(DOCUMENTS["resources"][of], {"name": name}))


def limits(name: str, scaling: Scaling) -> dict[str, Any]:
    """Return the resource with its limits: the arguments of RegisterScalableTarget."""
    return {**scalable_resource(name, scaling.of), "MinCapacity": scaling.least, "MaxCapacity": scaling.most}


def current_limits(account: Account, name: str, of: str = ENDPOINT) -> dict[str, Any] | None:
    """Return the current limits; None if the endpoint or component is not scaled."""
    query = scalable_resource(name, of)
    query["ResourceIds"] = [query.pop("ResourceId")]
    response = account.call(SERVICE, "describe_scalable_targets", "look at the autoscaling", **query)
    return next(iter(response.get("ScalableTargets", ())), None)


def current(account: Account, name: str, of: str) -> Scaling | None:
    """Return the current limits and targets; None if the endpoint is not scaled.

    Raises:
        CommandError: It has policies or scheduled actions that ``sm deploy`` did not make and could not make
            again.
    """
    if not (existing := current_limits(account, name, of)):
        return None
    kinds = {policy_name(name, ScalingTarget(kind, 0)): kind for kind in KINDS}
    targets, others = [], []
    for row in _policies(account, name, of):
        if kind := kinds.get(row["PolicyName"]):
            value = row["TargetTrackingScalingPolicyConfiguration"]["TargetValue"]
            targets.append(ScalingTarget(kind, float(value)))
        elif row["PolicyName"] != f"{name}-{WAKE}":
            others.append(f"the policy {row['PolicyName']}")
    with account.optional():
        query = {key: scalable_resource(name, of)[key] for key in ("ServiceNamespace", "ResourceId")}
        for row in account.paginate(
            SERVICE, "describe_scheduled_actions", "ScheduledActions", "look for scheduled actions", **query
        ):
            others.append(f"the scheduled action {row['ScheduledActionName']}")
    if others:
        raise CommandError(
            f"endpoint {name!r} is scaled by {', '.join(others)}, which 'sm deploy' did not make. SageMaker "
            "changes no instance type while an endpoint is scaled: remove the autoscaling first "
            f"('aws application-autoscaling deregister-scalable-target --service-namespace sagemaker "
            f"--scalable-dimension sagemaker:variant:DesiredInstanceCount --resource-id "
            f"{scalable_resource(name, of)['ResourceId']}'), then set it again."
        )
    return Scaling(existing["MinCapacity"], existing["MaxCapacity"], targets, of)


def apply(account: Account, name: str, scaling: Scaling) -> None:
    """Set limits and policy."""
    account.create(
        SERVICE,
        "register_scalable_target",
        "set the autoscaling's limits",
        **limits(name, scaling),
    )
    created = {}
    for kind, policy in policies(name, scaling).items():
        created[kind] = account.create(
            SERVICE,
            "put_scaling_policy",
            "set the autoscaling's policy",
            **policy,
            **scalable_resource(name, scaling.of),
        )
    _remove_others(account, name, scaling)
    if WAKE in created:
        account.create(
            "cloudwatch",
            "put_metric_alarm",
            "make the alarm that starts the first instance",
            **wake_alarm(name, scaling.of),
            AlarmActions=[created[WAKE].get("PolicyARN", "ARN-OF-THE-POLICY")],
        )


def remove(account: Account, name: str, of: str = ENDPOINT) -> None:
    """Remove limits, policies and their alarms, which AWS deletes together."""
    account.remove(
        SERVICE, "deregister_scalable_target", "remove the autoscaling", **scalable_resource(name, of)
    )


def policy_name(name: str, target: ScalingTarget) -> str:
    return f"{name}-{target.kind}"


def _remove_others(account: Account, name: str, scaling: Scaling) -> None:
    """Remove our policies for other targets: an old one would still add instances."""
    current = {policy_name(name, tracked) for tracked in scaling.targets}
    possible = {policy_name(name, ScalingTarget(kind, 0)) for kind in KINDS}
    for row in _policies(account, name, scaling.of):
        if row["PolicyName"] in possible - current:
            account.remove(
                SERVICE,
                "delete_scaling_policy",
                f"remove the autoscaling's policy {row['PolicyName']}",
                PolicyName=row["PolicyName"],
                **scalable_resource(name, scaling.of),
            )


def _policies(account: Account, name: str, of: str) -> list[dict[str, Any]]:
    response = account.call(
        SERVICE,
        "describe_scaling_policies",
        "look at the autoscaling's policies",
        ServiceNamespace="sagemaker",
        ResourceId=scalable_resource(name, of)["ResourceId"],
    )
    return list(response.get("ScalingPolicies", ()))


def policies(name: str, scaling: Scaling) -> dict[str, dict[str, Any]]:
    """Return the policy of each kind of target, and what starts the first one if there may be none."""
    found: dict[str, dict[str, Any]] = {}
    for target in scaling.targets:
        metric = scaling.of if target.kind == REQUESTS else target.kind
        found[target.kind] = {
            "PolicyName": policy_name(name, target),
            "PolicyType": "TargetTrackingScaling",
            "TargetTrackingScalingPolicyConfiguration": {
                "TargetValue": target.value,
                **documents.fill(DOCUMENTS["metrics"][metric], {"name": name}),
                **DOCUMENTS["cooldown"],
            },
        }
    if scaling.of in DOCUMENTS["wake"] and scaling.least == 0:
        found[WAKE] = {
            "PolicyName": f"{name}-wake",
            "PolicyType": "StepScaling",
            "StepScalingPolicyConfiguration": DOCUMENTS["wake"][scaling.of]["policy"],
        }
    return found


def wake_alarm(name: str, of: str) -> dict[str, Any]:
    """Return the alarm that starts the first instance or copy."""
    return dict(documents.fill(DOCUMENTS["wake"][of]["alarm"], {"name": name}))
