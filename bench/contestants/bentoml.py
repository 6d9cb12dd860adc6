"""BentoML."""

from __future__ import annotations

from collections.abc import Sequence

from bench.contestant import PROCESSES
from bench.contestants.peer import Peer


class BentoMl(Peer):
    name = "bentoml"
    about = f"BentoML, {PROCESSES} workers, without traces, metrics and access log"
    ready_path = "/readyz"
    raw_path = "/{model}/raw"

    def command(self) -> Sequence[str]:
        return (
            *(str(self.python), "-m", "bentoml", "serve", "bench.peers.bentoml_service:Service"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
        )

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "BENTOML_HOME": str(self.folder / "home"),
            "BENTOML_DO_NOT_TRACK": "True",
        }
