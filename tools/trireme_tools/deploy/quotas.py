"""Ask Service Quotas whether the account may run the instances, before anything is uploaded.

A quota that stops the autoscaling later is seen nowhere on the endpoint, so its limit counts too.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from sm.errors import CommandError
from trireme_tools.deploy.account import Account
from trireme_tools.deploy.resources import SAGEMAKER

SERVICE = "service-quotas"
#: The name of each instance type's quota: docs.aws.amazon.com/general/latest/gr/sagemaker.html.
NAME = "{} for endpoint usage"
#: An account's own values, and AWS's defaults for quotas that have none.
LISTS = ("list_service_quotas", "list_aws_default_service_quotas")

Instances = Counter[str]


def check(
    account: Account, name: str, configuration: Mapping[str, Any], most: int = 0, changes: bool = True
) -> None:
    """Raise :class:`CommandError` if a quota of the account is below what the endpoint ``name`` needs.

    Without the permission to see it, or an answer, say so and go on: a private network may reach SageMaker
    and not Service Quotas, and an account with many endpoints be told to slow down.

    Args:
        configuration: CreateEndpointConfig's arguments, or as it is described.
        most: Instances that autoscaling may start; 0 without autoscaling.
        changes: The configuration is not the one that serves, so its instances start beside the old ones.
    """
    now, later = Instances(), Instances()
    for variant in _variants(configuration):
        count = variant.get("InitialInstanceCount", 1)
        most_of_variant = variant.get("ManagedInstanceScaling", {}).get("MaxInstanceCount", most)
        now[variant["InstanceType"]] += count if changes else 0
        later[variant["InstanceType"]] += max(count, most_of_variant)
    for instance_type in later:
        with account.progress.step(f"asking for the quota of {instance_type}"):
            quota, own, others = _read(account, name, instance_type)
        # An update keeps the number of instances that autoscaling has started.
        starting = max(now[instance_type], own if most else 0) if changes else 0
        needed = max(own + starting, later[instance_type])
        if quota and others + needed > quota["Value"]:
            raise CommandError(_sentence(account.region, quota, needed, own, others))


def _read(account: Account, name: str, instance_type: str) -> tuple[dict[str, Any] | None, int, int]:
    """Return the quota, None if it cannot be seen, and what runs of ``name`` and of all others."""
    quota, running = None, Instances()
    with account.optional(also_unavailable=True):
        doing, wanted = "look at the quotas of SageMaker", NAME.format(instance_type)
        rows = itertools.chain.from_iterable(
            account.paginate(SERVICE, operation, "Quotas", doing, ServiceCode=SAGEMAKER)
            for operation in LISTS
        )
        quota = next((row for row in rows if row["QuotaName"] == wanted), None)
        if quota:
            running = _running(account, instance_type)
    return quota, running[name], running.total() - running[name]


def _running(account: Account, instance_type: str) -> Instances:
    """Return the instances of a type that each endpoint of the account has or is starting."""
    running, doing = Instances(), "count what runs already"
    for row in account.paginate(SAGEMAKER, "list_endpoints", "Endpoints", doing):
        name = row["EndpointName"]
        endpoint = account.describe(SAGEMAKER, "describe_endpoint", doing, EndpointName=name)
        if not endpoint or endpoint["EndpointStatus"] == "Failed":
            continue
        config_name = endpoint["EndpointConfigName"]
        configuration = account.describe(
            SAGEMAKER, "describe_endpoint_config", doing, EndpointConfigName=config_name
        )
        variants = [
            *endpoint.get("ProductionVariants", ()),
            *endpoint.get("ShadowProductionVariants", ()),
        ]
        counts = {variant["VariantName"]: variant for variant in variants}
        for variant in _variants(configuration or {}):
            if variant["InstanceType"] == instance_type:
                counted = counts.get(variant["VariantName"], {})
                numbers = [counted.get(f"{kind}InstanceCount") for kind in ("Current", "Desired")]
                known = [number for number in numbers if number is not None]
                running[name] += max(known or [variant.get("InitialInstanceCount", 1)])
    return running


def _variants(configuration: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the variants with instances of one type, the shadow's too."""
    for kind in ("ProductionVariants", "ShadowProductionVariants"):
        yield from (variant for variant in configuration.get(kind) or () if "InstanceType" in variant)


def _sentence(region: str, quota: Mapping[str, Any], needed: int, own: int, others: int) -> str:
    beside = f", beside {others} of other endpoints that run already" if others else ""
    update = f" (an update starts them beside the {own} that serve now)" if own else ""
    return (
        f"the account's quota {quota['QuotaName']!r} ({quota['QuotaCode']}) in {region} is "
        f"{quota['Value']:g}, and {needed} are needed{update}{beside}. Nothing was uploaded. Ask for more, "
        f"which may take days, or use another --instance-type: aws {SERVICE} request-service-quota-increase "
        f"--service-code {SAGEMAKER} --quota-code {quota['QuotaCode']} --desired-value {others + needed} "
        f"--region {region}"
    )
