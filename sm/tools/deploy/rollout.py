"""How an update takes over: all at once, a part first (canary), or step by step (linear)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Seconds: the most that SageMaker takes for an update, and what new instances may need to start.
LONGEST, STARTING = 28_800, 3600


@dataclass(frozen=True)
class Rollout:
    """``kind`` is SageMaker's; ``percent`` of the capacity moves first or each time; ``bake`` in seconds.

    If one of ``alarms`` goes off meanwhile, SageMaker puts the old version back.
    """

    kind: str = "ALL_AT_ONCE"
    percent: int = 0
    bake: int = 300
    alarms: tuple[str, ...] = ()

    def deployment(self) -> dict[str, Any]:
        """The DeploymentConfig of UpdateEndpoint: blue/green, as the old version must stay until then."""
        routing: dict[str, Any] = {"Type": self.kind, "WaitIntervalInSeconds": self.bake}
        size = {"Type": "CAPACITY_PERCENT", "Value": self.percent}
        if self.kind == "CANARY":
            routing["CanarySize"] = size
        if self.kind == "LINEAR":
            routing["LinearStepSize"] = size
        policy = {
            "TrafficRoutingConfiguration": routing,
            # The old instances stay for as long as an alarm on the last step may take.
            "TerminationWaitInSeconds": self.bake,
            "MaximumExecutionTimeoutInSeconds": min(LONGEST, STARTING + self.bake * (self._steps + 1)),
        }
        made: dict[str, Any] = {"BlueGreenUpdatePolicy": policy}
        if self.alarms:
            alarms = [{"AlarmName": name} for name in self.alarms]
            made["AutoRollbackConfiguration"] = {"Alarms": alarms}
        return made

    @property
    def _steps(self) -> int:
        return -(-100 // self.percent) if self.kind == "LINEAR" else 1

    @property
    def is_usual(self) -> bool:
        """Whether SageMaker does this by itself."""
        return self.kind == "ALL_AT_ONCE" and not self.alarms
