"""Model control that records what it is told."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

from sm.errors import NotReady
from sm.triton.model_control import ModelControl


@dataclass
class Noted(ModelControl):
    """Stands in for Triton, whose part is not under test here: notes what it is asked, or fails."""

    calls: list[str] = field(default_factory=list)
    failing: Exception | None = None
    lost: tuple[str, ...] = ()
    known: dict[str, str] = field(default_factory=dict)
    held: threading.Event = field(default_factory=threading.Event)

    def states(self) -> dict[str, str]:
        return self.known

    def load(self, model: str, parts: Collection[str] = (), seconds: float | None = None) -> None:
        self.calls.append(f"load {model}")
        if model == "slow":
            self.held.wait(10)
        if self.failing:
            raise self.failing

    def ready(self, model: str) -> bool:
        return model not in self.lost

    def unload(self, model: str) -> None:
        self.calls.append(f"unload {model}")
        if isinstance(self.failing, NotReady):
            raise self.failing
