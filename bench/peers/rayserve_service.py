"""Three models behind Ray Serve: every replica has them all, and looks at the path."""

# mypy: disallow-untyped-decorators=false
from __future__ import annotations

import os
import signal
import sys
import threading
from base64 import b64decode
from typing import Any

import ray
from ray import serve
from starlette.requests import Request

from bench.work import work

PROCESSES = len(os.sched_getaffinity(0))
#: Requests that a replica holds at once: a replica that has as many refuses further ones.
HELD = 256


@serve.deployment(num_replicas=PROCESSES, max_ongoing_requests=HELD, ray_actor_options={"num_cpus": 1})
class Service:
    def __init__(self) -> None:
        self.answer = {model: work(model) for model in ("resnet", "yolov5", "bert_base")}

    async def __call__(self, request: Request) -> Any:
        """``/<model>`` takes JSON with ``image``, base64, or ``text``; ``/<model>/raw`` the content."""
        model, _, form = request.url.path.strip("/").partition("/")
        if model == "ping":
            return "ok"
        if form == "raw":
            return self.answer[model](await request.body())
        fields = await request.json()
        content = fields["text"].encode() if model == "bert_base" else b64decode(fields["image"])
        return self.answer[model](content)


def main(folder: str) -> None:
    ended = threading.Event()
    ray.init(
        num_cpus=PROCESSES,
        include_dashboard=False,
        log_to_driver=False,
        # Nothing but the answers passes through it.
        object_store_memory=100 * 2**20,
        _node_ip_address="127.0.0.1",
        _temp_dir=folder,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": int(os.environ["BENCH_PORT"])})
    serve.run(Service.bind())  # type: ignore[attr-defined]
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
