"""Three models behind LitServe: each with a path and workers of its own."""

# mypy: disallow-subclassing-any=false
# LitServe reads the annotations themselves, so they may not become strings.
import os
import signal
from base64 import b64decode
from typing import Any

from fastapi import Request
from litserve import LitAPI, LitServer

from bench.work import work

#: Processes that read HTTP, and for each model those that work.
PROCESSES = len(os.sched_getaffinity(0))


class Pictures(LitAPI):
    """JSON with ``image``, base64. What comes to ``decode_request`` for a Request is its JSON, read."""

    def setup(self, device: str) -> None:  # noqa: ARG002 - LitServe's signature
        self.answer = work(self.api_path.strip("/"))

    def decode_request(self, request: Request) -> bytes:
        return b64decode(request["image"])

    def predict(self, content: bytes) -> list[dict[str, Any]]:
        return self.answer(content)


class Texts(Pictures):
    """JSON with ``text``."""

    def decode_request(self, request: Request) -> bytes:
        text: str = request["text"]
        return text.encode()


def main() -> None:
    # SIGTERM alone would end this process and leave the others; Ctrl-C ends them all.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    server = LitServer(
        [Pictures(api_path="/resnet"), Pictures(api_path="/yolov5"), Texts(api_path="/bert_base")],
        accelerator="cpu",
        workers_per_device=PROCESSES,
        fast_queue=True,
        timeout=120,
    )
    server.run(
        host="127.0.0.1",
        port=int(os.environ["BENCH_PORT"]),
        num_api_servers=PROCESSES,
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )


if __name__ == "__main__":
    main()
