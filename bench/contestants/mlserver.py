"""MLServer."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import ClassVar

from bench.contestant import PROCESSES, Regime, Request
from bench.contestants.peer import Peer
from bench.running import free_port
from sm.errors import CommandError
from sm.settings import HERE


class MlServer(Peer):
    """The v2 protocol in JSON, a picture as BYTES in base64; it has no binary form over HTTP."""

    name = "mlserver"
    about = f"MLServer, {PROCESSES} parallel workers, without metrics, access log and gzip"
    workers = PROCESSES
    ready_path = "/v2/health/ready"

    def prepare(self) -> None:
        if sys.version_info >= (3, 13):
            raise CommandError(
                "MLServer 1.7 needs a Python below 3.13: run the benchmark with 3.10, 3.11 or 3.12."
            )
        super().prepare()

    def command(self) -> Sequence[str]:
        return (str(self.python.with_name("mlserver")), "start", str(HERE / "bench" / "peers" / "mlserver"))

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "MLSERVER_HTTP_PORT": str(self.port),
            "MLSERVER_GRPC_PORT": str(free_port()),
            "MLSERVER_PARALLEL_WORKERS": str(self.workers),
        }

    def request(self, model: str, form: str) -> Request | None:
        if form == "raw":
            return None
        sample = self.sample(model)
        text = model == "bert_base"
        field = {
            "name": "text" if text else "image",
            "shape": [1],
            "datatype": "BYTES",
            "parameters": {"content_type": "str" if text else "base64"},
            "data": [sample.text if text else sample.base64],
        }
        body = json.dumps({"inputs": [field]}).encode()
        path = f"/v2/models/{model}/infer"
        return Request(path, {"Content-Type": "application/json"}, body, sample.expected)


class OneProcess(MlServer):
    """What crosses no process costs less: an instant BERT is faster so, pictures on two cores are not."""

    name = "mlserver_one"
    about = "MLServer without parallel workers: one process does it all; else as above"
    packages = "mlserver"
    workers = 0
    regimes: ClassVar[tuple[Regime, ...]] = ("instant",)
