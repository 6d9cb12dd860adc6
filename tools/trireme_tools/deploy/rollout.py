"""How an update takes over: all at once, a part first (canary), or step by step (linear)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Seconds: SageMaker's limit for an update, and what new instances may need to start.
MAX_UPDATE_S, MAX_START_S = 28_800, 3600


@dataclass(frozen=True)
class Rollout:
    """``kind`` is SageMaker's. ``percent`` of the capacity moves first or in each step; ``bake`` is in
    seconds.

    If one of ``alarms`` goes off, SageMaker restores the old version.
    """

    kind: str = "ALL_AT_ONCE"
    percent: int = 0
    bake: int = 300
    alarms: tuple[str, ...] = ()

    def deployment(self) -> dict[str, Any]:
        """Return the DeploymentConfig of UpdateEndpoint: blue/green, as the old version must stay until the
        end.
        """
        routing: dict[str, Any] = {"Type": self.kind, "WaitIntervalInSeconds": self.bake}
        size = {"Type": "CAPACITY_PERCENT", "Value": self.percent}
        if self.kind == "CANARY":
            routing["CanarySize"] = size
        if self.kind == "LINEAR":
            routing["LinearStepSize"] = size
        policy = {
            "TrafficRoutingConfiguration": routing,
            # The old instances stay as long as an alarm on the last step may take.
            "TerminationWaitInSeconds": self.bake,
            "MaximumExecutionTimeoutInSeconds": min(
                MAX_UPDATE_S, MAX_START_S + self.bake * (self._steps + 1)
            ),
        }
        configuration: dict[str, Any] = {"BlueGreenUpdatePolicy": policy}
        if self.alarms:
            alarms = [{"AlarmName": name} for name in self.alarms]
            configuration["AutoRollbackConfiguration"] = {"Alarms": alarms}
        return configuration

    @property
    def _steps(self) -> int:
        return -(-100 // self.percent) if self.kind == "LINEAR" else 1

    @property
    def is_default(self) -> bool:
        """True if this is SageMaker's default."""
        return self.kind == "ALL_AT_ONCE" and not self.alarms
