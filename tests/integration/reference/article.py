"""The three requests of the article's notebook, byte for byte, and the ports that its callers know."""

from __future__ import annotations

import base64
import fcntl
import json
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sm.settings import HERE
from tests.support.boxes import wait_until

JSON = "application/json"
PICTURES = {
    "resnet": HERE / "clients" / "resnet" / "sample" / "coffee.jpg",
    "yolov5": HERE / "clients" / "yolov5" / "sample" / "collage.jpg",
}
#: Triton's ports for HTTP, gRPC and metrics.
PORTS = (8000, 8001, 8002)


def payload(model: str) -> dict[str, str]:
    if model == "bert_base":
        return {"text": "The world has [MASK] people."}
    return {"img": base64.b64encode(PICTURES[model].read_bytes()).decode()}


def request(model: str) -> str:
    """Return the body of a request, made as the notebook makes it."""
    return json.dumps({"modelname": model, "payload": payload(model)})


@contextmanager
def usual_ports() -> Iterator[None]:
    """Wait for Triton's ports, and keep this machine's other tests off them until the block ends."""
    with (Path(tempfile.gettempdir()) / "trireme-tests-usual-ports").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wait_until(are_free, description="ports 8000 to 8002 to be free")
        yield


def are_free() -> bool:
    def is_taken(port: int) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", port)) == 0

    return not any(map(is_taken, PORTS))
