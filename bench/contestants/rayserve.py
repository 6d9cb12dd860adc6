"""Ray Serve."""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex

from bench.contestant import PROCESSES
from bench.contestants.peer import Peer
from bench.running import free_port


class RayServe(Peer):
    """Ray opens further ports on the machine's own address, not on loopback alone; a token guards them."""

    name = "rayserve"
    about = f"Ray Serve behind its HAProxy, {PROCESSES} replicas, optimised for throughput"
    raw_path = "/{model}/raw"

    def command(self) -> Sequence[str]:
        return (str(self.python), "-m", "bench.peers.rayserve_service")

    def environment(self) -> dict[str, str]:
        haproxy = self.folder / "haproxy"
        return {
            **super().environment(),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_TOKEN": token_hex(),
            # These two: a sixth of the processor time for each request, seen with BERT.
            "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            "RAY_SERVE_HAPROXY_NBTHREAD": str(PROCESSES),
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(haproxy / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(haproxy / "admin.sock"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(haproxy),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(haproxy / "server-state"),
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        }
