"""FastAPI on uvicorn."""

from __future__ import annotations

from collections.abc import Sequence

from bench.contestant import PROCESSES, THREADS
from bench.contestants.peer import Peer


class FastApi(Peer):
    """The endpoints are coroutines that do the work at once.

    In Starlette's threads an instant BERT took twice the processor time, a real ResNet a quarter more.
    """

    name = "fastapi"
    about = f"FastAPI on uvicorn with uvloop and httptools, {PROCESSES} workers"
    raw_path = "/{model}/raw"

    def command(self) -> Sequence[str]:
        return (
            *(str(self.python), "-m", "uvicorn", "--factory", "bench.peers.fastapi_service:create"),
            *("--host", "127.0.0.1", "--port", str(self.port), "--workers", str(PROCESSES)),
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
