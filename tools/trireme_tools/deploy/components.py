"""An inference component: copies of one model on the instances of an endpoint that several share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sm.errors import CommandError
from trireme_tools.deploy import api_fields, endpoint_logs, quotas, resources
from trireme_tools.deploy.account import Account
from trireme_tools.deploy.deploy_arguments import COMPUTE
from trireme_tools.deploy.deployment_plan import DeploymentPlan
from trireme_tools.deploy.gpu_hosts import AMI
from trireme_tools.deploy.resources import SAGEMAKER, Resources
from trireme_tools.deploy.waiting import Waiter, make_failure

#: Members of a variant that belong to its instances, and not to a model.
OF_INSTANCES = ("VariantName", "InstanceType", "InitialInstanceCount", AMI, "RoutingConfig")


@dataclass(frozen=True)
class Component:
    """``copies`` of a plan's model on the instances of ``endpoint``; None: as many as there are, or one."""

    plan: DeploymentPlan
    endpoint: str
    compute: Mapping[str, float]
    copies: int | None = None
    #: Seconds between two copies of an update.
    bake: int = 0
    #: Copies that autoscaling may start; None without autoscaling.
    limits: tuple[int, int] | None = None

    @classmethod
    def of(cls, options: argparse.Namespace, plan: DeploymentPlan) -> Component:
        given = {field: getattr(options, name) for name, field in COMPUTE.items()}
        compute = {field: value for field, value in given.items() if value is not None}
        return cls(
            plan, options.endpoint or plan.name, compute, options.copies, options.bake, options.autoscale
        )

    def create(self) -> dict[str, Any]:
        """Return the arguments of CreateInferenceComponent."""
        plan = self.plan
        specification: dict[str, Any] = {
            "ModelName": plan.model_name,
            "ComputeResourceRequirements": dict(self.compute),
        }
        if plan.startup_timeout:
            specification["StartupParameters"] = {
                "ModelDataDownloadTimeoutInSeconds": plan.startup_timeout,
                "ContainerStartupHealthCheckTimeoutInSeconds": plan.startup_timeout,
            }
        arguments = {
            "InferenceComponentName": plan.name,
            "EndpointName": self.endpoint,
            "VariantName": resources.VARIANT,
            "Specification": specification,
            "RuntimeConfig": {"CopyCount": 1 if self.copies is None else self.copies},
            "Tags": plan.all_tags(),
        }
        return api_fields.apply(api_fields.COMPONENT, arguments, plan.fields)

    def update(self) -> dict[str, Any]:
        """Return the arguments of UpdateInferenceComponent: one copy after the other."""
        policy = {"MaximumBatchSize": {"Type": "COPY_COUNT", "Value": 1}, "WaitIntervalInSeconds": self.bake}
        return {
            "InferenceComponentName": self.plan.name,
            "Specification": self.create()["Specification"],
            "DeploymentConfig": {"RollingUpdatePolicy": policy},
        }

    def host(self) -> dict[str, Any]:
        """Return the arguments of CreateEndpointConfig for an endpoint of components, which has no model.

        SageMaker starts and stops instances as the copies need them, down to none if autoscaling may end all.
        """
        plan = replace(self.plan, fields=())
        (variant,) = plan.configuration()["ProductionVariants"]
        least, most = self.limits or (1, 1)
        scaling = {
            "Status": "ENABLED",
            "MinInstanceCount": min(least, 1),
            "MaxInstanceCount": max(plan.count, most, self.copies or 1),
        }
        kept = {name: variant[name] for name in OF_INSTANCES if name in variant}
        content = {
            "ExecutionRoleArn": plan.role,
            "ProductionVariants": [{**kept, "ManagedInstanceScaling": scaling}],
        }
        content = api_fields.apply(api_fields.CONFIGURATION, content, self.plan.fields)
        name = resources.add_hash(plan.name, content)
        return {"EndpointConfigName": name, **content, "Tags": plan.all_tags()}


class ComponentWaiter(Waiter):
    """Polls an inference component."""

    kind = "component"

    def _poll(self, name: str) -> dict[str, Any] | None:
        described = describe(self._account, name)
        return {**described, "EndpointStatus": described["InferenceComponentStatus"]} if described else None

    def _group(self, name: str) -> str:
        return endpoint_logs.component_group(name)


def describe(account: Account, name: str) -> dict[str, Any] | None:
    """Describe a component; None if it does not exist."""
    return account.describe(
        SAGEMAKER, "describe_inference_component", f"look at component {name}", InferenceComponentName=name
    )


def of_endpoint(account: Account, endpoint: str) -> list[dict[str, Any]]:
    """Return the components of an endpoint, as they are listed; none without the permission."""
    found: list[dict[str, Any]] = []
    with account.optional():
        found += account.paginate(
            SAGEMAKER,
            "list_inference_components",
            "InferenceComponents",
            f"list the components of {endpoint}",
            EndpointNameEquals=endpoint,
        )
    return found


def remove(account: Account, name: str) -> None:
    account.remove(
        SAGEMAKER, "delete_inference_component", f"remove component {name}", InferenceComponentName=name
    )
    ComponentWaiter(account).wait(name)


def check_quotas(account: Account, component: Component) -> None:
    """Raise :class:`CommandError` if a new component's endpoint may start more than a quota allows."""
    if describe(account, component.plan.name):
        return
    name, configuration = component.endpoint, component.host()
    endpoint = account.describe(SAGEMAKER, "describe_endpoint", f"look at endpoint {name}", EndpointName=name)
    if endpoint:
        config_name = endpoint["EndpointConfigName"]
        configuration = Resources(account, name).configuration(config_name) or configuration
    quotas.check(account, name, configuration, changes=endpoint is None)


def apply(account: Account, component: Component) -> None:
    """Make the component serve its model with its copies; create what does not exist."""
    plan = component.plan
    existing = ComponentWaiter(account).wait(plan.name)
    tags = Resources(account, plan.name).tags(existing["InferenceComponentArn"]) if existing else {}
    if existing and tags.get(resources.TAG) != plan.name:
        raise CommandError(f"component {plan.name!r} was not created by 'sm deploy': choose another name.")
    if existing and existing["EndpointName"] != component.endpoint:
        raise CommandError(
            f"component {plan.name!r} is on endpoint {existing['EndpointName']!r}: name it, or delete."
        )
    if existing and existing["EndpointStatus"] == "Failed":
        account.progress.say(f"component {plan.name} has failed earlier: creating it again")
        remove(account, plan.name)
        existing = None
    _provide_host(account, component)
    if Resources(account, plan.name).model(plan.model_name) is None:
        account.create(SAGEMAKER, "create_model", f"make model {plan.model_name}", **plan.model())
    wanted = component.create()
    if existing is None:
        account.create(SAGEMAKER, "create_inference_component", f"make component {plan.name}", **wanted)
        _wait(account, plan.name)
        return
    if not _contains(existing["Specification"], wanted["Specification"]):
        account.create(
            SAGEMAKER, "update_inference_component", f"update component {plan.name}", **component.update()
        )
        _wait(account, plan.name)
    copies = existing.get("RuntimeConfig", {}).get("DesiredCopyCount")
    if component.copies not in (None, copies):
        account.create(
            SAGEMAKER,
            "update_inference_component_runtime_config",
            f"set the copies of component {plan.name}",
            InferenceComponentName=plan.name,
            DesiredRuntimeConfig={"CopyCount": component.copies},
        )
        _wait(account, plan.name)


def _provide_host(account: Account, component: Component) -> None:
    """Check the endpoint, or create it if it has the component's name."""
    name, plan = component.endpoint, component.plan
    endpoint = Waiter(account).wait(name)
    if endpoint:
        deployed = Resources(account, name)
        configuration = deployed.configuration(endpoint["EndpointConfigName"]) or {}
        if any(variant.get("ModelName") for variant in configuration.get("ProductionVariants", ())):
            raise CommandError(f"endpoint {name!r} has a model of its own, so it takes no components.")
        return
    if name != plan.name:
        raise CommandError(
            f"there is no endpoint {name!r} in {account.region}; without --endpoint one is made."
        )
    host = component.host()
    made = f"make configuration {host['EndpointConfigName']}"
    account.create(SAGEMAKER, "create_endpoint_config", made, **host)
    arguments = {
        "EndpointName": name,
        "EndpointConfigName": host["EndpointConfigName"],
        "Tags": plan.all_tags(),
    }
    account.create(SAGEMAKER, "create_endpoint", f"make endpoint {name}", **arguments)
    if not account.dry:
        endpoint = Waiter(account).wait(name) or {"EndpointStatus": "gone"}
        if endpoint["EndpointStatus"] != "InService":
            raise make_failure(name, "could not be created", str(endpoint.get("FailureReason", "")), [])


def _wait(account: Account, name: str) -> None:
    if account.dry:
        return
    component = ComponentWaiter(account).wait(name) or {"EndpointStatus": "gone"}
    if component["EndpointStatus"] != "InService":
        lines = endpoint_logs.last_lines(account, name, 20, group=endpoint_logs.component_group(name))
        raise make_failure(name, "is not in service", str(component.get("FailureReason", "")), lines)


def _contains(described: Any, wanted: Any) -> bool:
    """True if all that is wanted is described; AWS adds members."""
    if isinstance(wanted, dict):
        return all(name in described and _contains(described[name], value) for name, value in wanted.items())
    return bool(described == wanted)
