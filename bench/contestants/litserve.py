"""LitServe."""

from __future__ import annotations

from collections.abc import Sequence

from bench.contestant import PROCESSES
from bench.contestants.peer import Peer


class LitServe(Peer):
    """It reads a body as JSON or as a form: the content alone has no way in.

    No batches: collecting them took 1.2 to 1.7 times the processor time with instant models. Its fast queue
    (ZeroMQ) took a few percent less than the default.
    """

    name = "litserve"
    about = f"LitServe on the CPU, {PROCESSES} workers for each model"
    ready_path = "/health"

    def command(self) -> Sequence[str]:
        return (str(self.python), "-m", "bench.peers.litserve_service")
