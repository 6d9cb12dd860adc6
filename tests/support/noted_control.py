"""A stand-in for Triton's model control that records its calls."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

from sm.errors import NotReady
from sm.triton.model_control import ModelControl


@dataclass
class RecordingControl(ModelControl):
    """Records loads and unloads, or raises ``failing``. A load of the model ``slow`` waits."""

    calls: list[str] = field(default_factory=list)
    failing: Exception | None = None
    unready_models: tuple[str, ...] = ()
    model_states: dict[str, str] = field(default_factory=dict)
    release_slow_load: threading.Event = field(default_factory=threading.Event)

    def states(self) -> dict[str, str]:
        return self.model_states

    def load(self, model: str, parts: Collection[str] = (), seconds: float | None = None) -> None:
        self.calls.append(f"load {model}")
        if model == "slow":
            self.release_slow_load.wait(10)
        if self.failing:
            raise self.failing

    def ready(self, model: str) -> bool:
        return model not in self.unready_models

    def unload(self, model: str) -> None:
        self.calls.append(f"unload {model}")
        if isinstance(self.failing, NotReady):
            raise self.failing
