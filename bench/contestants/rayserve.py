"""Ray Serve."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from tempfile import mkdtemp

from bench.contestant import PROCESSES
from bench.contestants.peer import Peer
from bench.running import free_port


class RayServe(Peer):
    """Ray opens further ports on the machine's own address, not on loopback alone; a token guards them."""

    name = "rayserve"
    about = f"Ray Serve behind its HAProxy, {PROCESSES} replicas, optimised for throughput"
    raw_path = "/{model}/raw"

    def prepare(self) -> None:
        super().prepare()
        # Names of sockets may have 107 characters; Ray's and HAProxy's add 65 to the folder's.
        self.short = Path(mkdtemp(prefix="ray-"))
        weakref.finalize(self, shutil.rmtree, self.short, ignore_errors=True)

    def command(self) -> Sequence[str]:
        return (str(self.python), "-m", "bench.peers.rayserve_service", str(self.short))

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_TOKEN": token_hex(),
            # These two: a sixth of the processor time for each request, seen with BERT.
            "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            "RAY_SERVE_HAPROXY_NBTHREAD": str(PROCESSES),
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(self.short / "haproxy.cfg"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": str(self.short / "admin.sock"),
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(self.short),
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(self.short / "server-state"),
            "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(self.short / "metrics.sock"),
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        }
