"""The input of a template: the deployment's plan, its role and its autoscaling."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trireme_tools.deploy.autoscaling import Scaling
from trireme_tools.deploy.deployment_plan import DeploymentPlan
from trireme_tools.templates.policies import Document


@dataclass(frozen=True)
class Stack:
    """If the plan names no role, the template creates one with ``policy``."""

    plan: DeploymentPlan
    policy: Document
    scaling: Scaling | None = None
    #: On Kubernetes: what a pod may have in flight before another one starts; None for the default.
    in_flight: int | None = None
    #: On Kubernetes: write a ServiceMonitor. A cluster without Prometheus' operator refuses it.
    service_monitor: bool = False
    #: On Kubernetes: what a pod asks for, such as "500m" and "8Gi"; None for what ``models`` may need.
    cpu: str | None = None
    memory: str | None = None
    #: On Kubernetes: the GPUs of a pod; None for those of the plan's instance type.
    gpus: int | None = None
    #: On Kubernetes: a copy of the model repository that the pods serve.
    models: Path | None = None
    #: On Kubernetes: pvc://CLAIM, a volume for what a box fetches; empty for one that ends with the pod.
    cache: str = ""
    #: On Kubernetes: send the requests of one address to one pod.
    sticky_sessions: bool = False

    @property
    def role_name(self) -> str:
        return f"{self.plan.name}-execution"
