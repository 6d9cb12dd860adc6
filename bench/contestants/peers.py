"""Servers that run the models in their own processes. Each service is a module of :mod:`bench.peers`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from bench.contestant import PROCESSES, THREADS, Contestant, Regime, Request, environment_of
from bench.running import free_port
from bench.samples import sample
from sm.errors import CommandError
from sm.settings import HERE


class Peer(Contestant):
    """A service on a Python of its own. A model's path takes JSON with ``image``, as base64, or ``text``."""

    #: Whose packages it runs on: those of ``<packages>.txt``; its own name's if None.
    packages: ClassVar[str | None] = None
    #: Where the content itself may be sent; None where the server has no such way.
    raw_path: ClassVar[str | None] = None

    def prepare(self) -> None:
        environment_of(self.packages or self.name)

    @property
    def python(self) -> Path:
        return environment_of(self.packages or self.name)

    def request(self, model: str, form: str) -> Request | None:
        given = sample(model)
        if form == "json":
            body = json.dumps(given.payload).encode()
            return Request(f"/{given.model}", {"Content-Type": "application/json"}, body, given.expected)
        if self.raw_path is None:
            return None
        path = self.raw_path.format(model=given.model)
        return Request(path, {"Content-Type": given.content_type}, given.content, given.expected)


class FastApi(Peer):
    """The endpoints are coroutines that do the work at once.

    In Starlette's threads an instant BERT took twice the processor time, a real ResNet a quarter more.
    """

    name = "fastapi"
    about = f"FastAPI on uvicorn with uvloop and httptools, {PROCESSES} workers"
    service, workers = "bench.peers.fastapi_service:create", PROCESSES
    raw_path = "/{model}/raw"

    def command(self) -> Sequence[str]:
        return (
            *(str(self.python), "-m", "uvicorn", "--factory", self.service),
            *("--host", "127.0.0.1", "--port", str(self.port), "--workers", str(self.workers)),
            *("--no-access-log", "--log-level", "warning"),
        )


class OnOpenVino(FastApi):
    """The arithmetic that the box chooses on a processor with bf16."""

    name = "fastapi_openvino"
    about = f"fastapi, with OpenVINO in bf16 ({THREADS} thread, not pinned) instead of ONNX Runtime"
    packages = "fastapi_openvino"
    regimes = ("real",)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "BENCH_ENGINE": "openvino"}


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
        given = sample(model)
        [(name, content)] = given.payload.items()
        field = {
            "name": name,
            "shape": [1],
            "datatype": "BYTES",
            "parameters": {"content_type": "str" if name == "text" else "base64"},
            "data": [content],
        }
        body = json.dumps({"inputs": [field]}).encode()
        path = f"/v2/models/{given.model}/infer"
        return Request(path, {"Content-Type": "application/json"}, body, given.expected)


class OneProcess(MlServer):
    """What crosses no process costs less: an instant BERT is faster so, pictures on two cores are not."""

    name = "mlserver_one"
    about = "MLServer without parallel workers: one process does it all; else as above"
    packages = "mlserver"
    workers = 0
    regimes: ClassVar[tuple[Regime, ...]] = ("instant",)
