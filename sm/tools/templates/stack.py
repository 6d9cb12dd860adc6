"""What a template is made from: the deployment's plan, its role and its autoscaling."""

from __future__ import annotations

from dataclasses import dataclass

from sm.tools.deploy.deployment_plan import Plan
from sm.tools.deploy.scaling import Scaling
from sm.tools.templates.policies import Document


@dataclass(frozen=True)
class Stack:
    """Where the plan names no role, the template makes one that may do what ``policy`` says."""

    plan: Plan
    policy: Document
    scaling: Scaling | None = None

    @property
    def role_name(self) -> str:
        return f"{self.plan.name}-execution"
