"""Three models behind LitServe: each with a path and workers of its own."""

# mypy: disallow-subclassing-any=false
from __future__ import annotations

import os
import signal
from base64 import b64decode
from typing import Any

from litserve import LitAPI, LitServer

from bench.work import work

#: Processes that read HTTP, and for each model those that work.
PROCESSES = len(os.sched_getaffinity(0))


class Pictures(LitAPI):
    """JSON with ``image``, base64."""

    def setup(self, device: str) -> None:  # noqa: ARG002 - LitServe's signature
        self.answer = work(self.api_path.strip("/"))

    def decode_request(self, request: dict[str, str]) -> bytes:
        return b64decode(request["image"])

    def predict(self, content: bytes) -> list[dict[str, Any]]:
        return self.answer(content)

    def encode_response(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return output


class Texts(Pictures):
    """JSON with ``text``."""

    def decode_request(self, request: dict[str, str]) -> bytes:
        return request["text"].encode()


def main() -> None:
    # SIGTERM alone would end this process and leave the others; Ctrl-C ends them all.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    apis = [Pictures(api_path="/resnet"), Pictures(api_path="/yolov5"), Texts(api_path="/bert_base")]
    server = LitServer(
        apis,
        accelerator="cpu",
        workers_per_device=PROCESSES,
        fast_queue=os.environ.get("FQ", "1") == "1",
        timeout=60,
    )
    server.run(
        host="127.0.0.1",
        port=int(os.environ["BENCH_PORT"]),
        num_api_servers=int(os.environ.get("NAS", PROCESSES)),
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )


if __name__ == "__main__":
    main()
