"""The memory that a worker and nginx touch for a body of 25 MiB, in copies of the body.

Of a box with one worker, which has answered small requests and come to rest. Before each body the kernel's
mark of the largest resident set is put back; what is not given back between two bodies counts for the later.
"""

from __future__ import annotations

import json
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bench import tree
from bench.contestant import FORMS
from bench.contestants.trireme import One, ask
from bench.driver import ANSWER_TIMEOUT_S, Request
from bench.endurance import SETTLE_S
from sm.errors import CommandError

#: Bytes of a body: the most that the platform sends.
LARGE = 25 * 2**20
#: Small requests in each form before it.
WARM = 20
#: Parts of the command lines of a worker and of nginx.
WORKER, NGINX = b"sm.server.worker\0data", b"nginx"
#: Written to ``clear_refs``: the mark becomes what is resident now (proc_pid_clear_refs(5)).
RESET = "5"


@dataclass(frozen=True)
class Cost:
    """Bytes of memory that were used for one body of ``size`` bytes."""

    form: str
    size: int
    worker: int
    nginx: int

    @property
    def copies(self) -> float:
        return (self.worker + self.nginx) / self.size


def costs(box: One, root: int, pause: float = SETTLE_S) -> Iterator[Cost]:
    """Measure the largest body: a raw picture, and base64 in JSON."""
    for form in FORMS:
        for _ in range(WARM):
            send(box.port, ask("resnet", form))
    time.sleep(pause)
    worker, nginx = resident_bytes(root, WORKER), resident_bytes(root, NGINX)
    for form, request in large():
        for pid in (*worker, *nginx):
            Path(f"/proc/{pid}/clear_refs").write_text(RESET)
        send(box.port, request)
        yield Cost(form, len(request.body), touched_bytes(worker), touched_bytes(nginx))
        time.sleep(pause)


def large() -> Iterator[tuple[str, Request]]:
    """Yield the largest bodies by form. Decoders ignore what follows the end of a JPEG."""
    small = ask("resnet", "raw")
    yield "raw", replace(small, body=small.body.ljust(LARGE, b"\0"))
    json_request = ask("resnet", "json")
    document = json.loads(json_request.body)
    document["payload"]["image"] = ""
    picture_bytes = (LARGE - len(json.dumps(document))) // 4 * 3
    document["payload"]["image"] = b64encode(small.body.ljust(picture_bytes, b"\0")).decode()
    yield "JSON with base64", replace(json_request, body=json.dumps(document).encode())


def send(port: int, request: Request) -> None:
    """Send a request. Raises :class:`CommandError` if the answer is not right."""
    url = f"http://127.0.0.1:{port}{request.path}"
    http_request = urllib.request.Request(url, request.body, dict(request.headers))
    try:
        with urllib.request.urlopen(http_request, timeout=ANSWER_TIMEOUT_S) as answer:  # noqa: S310
            right = request.expected in answer.read()
    except OSError as error:
        raise CommandError(f"{len(request.body):,} bytes to {request.path}: {error}") from None
    if not right:
        raise CommandError(f"the answer to {len(request.body):,} bytes to {request.path} is not right")


def resident_bytes(root: int, words: bytes) -> dict[int, int]:
    """Return the resident bytes of each process whose command line has these words."""
    return {
        pid: _status(pid, "VmRSS")
        for pid in tree.pids(root)
        if words in Path(f"/proc/{pid}/cmdline").read_bytes()
    }


def touched_bytes(before: Mapping[int, int]) -> int:
    """Return the peak of resident bytes since the kernel's mark was reset, beyond those ``before``."""
    return sum(_status(pid, "VmHWM") - size for pid, size in before.items())


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
