"""Ray Serve."""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex

from bench.contestant import PROCESSES
from bench.contestants.peer import Peer


class RayServe(Peer):
    name = "rayserve"
    about = f"Ray Serve, {PROCESSES} replicas, optimised for throughput"
    raw_path = "/{model}/raw"

    def command(self) -> Sequence[str]:
        return (str(self.python), "-m", "bench.peers.rayserve_service")

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
            # A token of this run's own; else Ray writes one into the home folder.
            "RAY_AUTH_TOKEN": token_hex(),
        }
