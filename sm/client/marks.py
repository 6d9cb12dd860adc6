"""The box's own notes on a client that it serves; no author reads or sets it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sm.client.payloads import Payload
from sm.invocation import Invocation


class Gatherer(Protocol):
    """Answers the records that wait for one client together; see :class:`sm.client.batches.Batches`."""

    #: Records that are answered together, at most.
    max_batch: int

    def answer(self, payloads: Sequence[Payload], invocation: Invocation | None) -> list[object]:
        """Return each record's result, or the exception of the client if it failed."""
        ...


class Asking(Protocol):
    """Asks the client's ``ready``; see :class:`sm.client.readiness.ReadinessCheck`."""

    def begin(self) -> None:
        """Ask, unless an earlier question is open."""

    def read(self, seconds: float) -> None:
        """Wait so long for the answer, and note why the client is not ready."""


@dataclass
class Marks:
    """The notes on one client."""

    #: Gathers the records that wait for the client; None if it answers each alone.
    batches: Gatherer | None = None
    #: Asks whether it is ready; None if it does not implement that.
    readiness: Asking | None = None
    #: Why it cannot serve now; empty if it can.
    unready: str = ""
    #: True in a box that loads edited clients again: its caller is its author.
    is_edited: bool = False
