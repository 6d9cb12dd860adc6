"""Count what the router does for one request, in numbers that do not depend on other load.

    python -m bench.counting

In a worker's environment (see :func:`bench.quick.count`): the very application that gunicorn would serve,
asked in this process as a worker does, with a real Triton behind it. Prints one line of JSON:
``{"resnet json": {"bytecodes": 1, ...}}``.
"""

from __future__ import annotations

import io
import json
import os
import socket
import sys
import time
import tracemalloc
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from bench.contestant import FORMS, MODELS
from bench.contestants.trireme import ask
from bench.driver import Request
from sm.run_state import Box
from sm.server.thread_worker import read_plain
from sm.server.worker import DataPlane
from sm.settings import HERE, Settings

#: Requests before the count, which fill caches, and counted requests, of which the lowest count is used.
WARM, ROUNDS = 20, 5
#: Bytes: the largest body.
LARGE = 25 * 2**20
#: The folders whose functions are the box's own.
OWN_FOLDERS = tuple(f"{HERE / name}/" for name in ("sm", "extensions", "clients"))


def main() -> None:
    plane = DataPlane(Settings.read(os.environ), Box.load(Path(os.environ["TRIREME_RUN_DIR"])))
    application, counts_by_request = plane.load(), {}
    for name, request in requests():
        call = Call(application, request)
        for _ in range(WARM):
            call.prepare()
            call()
        counts_by_request[name] = {measure: min(values) for measure, values in counts(call)}
    print(json.dumps(counts_by_request))


def requests() -> Iterator[tuple[str, Request]]:
    """Yield each model in each form, and a picture of the largest accepted size."""
    for model in MODELS:
        for form in FORMS:
            yield f"{model} {form}", ask(model, form)
    small = ask("resnet", "raw")
    # Decoders ignore what follows the end of a JPEG.
    body = small.body.ljust(LARGE, b"\0")
    yield f"resnet raw, {LARGE // 2**20} MiB", replace(small, body=body)
    document = json.loads(ask("resnet", "json").body)
    document["payload"]["image"] = b64encode(body[: LARGE * 3 // 4 - 2**10]).decode()
    body_text = json.dumps(document).encode()
    yield f"resnet json, {LARGE // 2**20} MiB", replace(ask("resnet", "json"), body=body_text)


class Call:
    """Sends one request to the application as gunicorn does behind nginx, and checks the answer.

    What the caller prepares is not the box's work, so it is not counted.
    """

    def __init__(self, application: Any, request: Request) -> None:
        self._application, self._request = application, request
        self._server_end, self._caller_end = socket.socketpair()
        self._environ: dict[str, Any] = {}
        self._status = ""

    def prepare(self) -> None:
        """Make the request."""
        request = self._request
        fields = {
            "Host": "localhost",
            **request.headers,
            "Content-Length": str(len(request.body)),
            "X-Trireme-Request-Id": "0" * 32,
            "X-Trireme-Start": f"{time.time():.3f}",
        }
        lines = (f"POST {request.path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()))
        plain = read_plain("".join(f"{line}\r\n" for line in (*lines, "")).encode())
        assert plain is not None
        self._environ = {
            **plain.environ,
            "gunicorn.socket": self._server_end,
            "wsgi.input": io.BytesIO(request.body),
        }

    def __call__(self) -> None:
        body = b"".join(self._application(self._environ, self._start_response))
        if self._request.expected not in body or not self._status.startswith("200"):
            raise AssertionError(body)

    def _start_response(self, status: str, *_: object) -> None:
        self._status = status


def counts(call: Call) -> Iterator[tuple[str, list[int]]]:
    """Return one number per round for each measure."""
    yield "bytecodes", [bytecodes(call) for _ in range(ROUNDS)]
    yield "calls", [calls(call) for _ in range(ROUNDS)]
    ways = [way(call) for _ in range(ROUNDS)]
    for measure in ways[0]:
        yield measure, [own[measure] for own in ways]
    tracemalloc.start()
    yield "peak bytes", [peak(call) for _ in range(ROUNDS)]
    tracemalloc.stop()


def bytecodes(call: Call) -> int:
    """Count the bytecode instructions that this thread runs."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    call.prepare()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return count


def calls(call: Call) -> int:
    """Count calls of functions, in Python and in C."""
    count = 0

    def profile(_: FrameType, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    call.prepare()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def way(call: Call) -> dict[str, int]:
    """Count the calls of the box's and the clients' own functions, and the files and classes they are in."""
    codes: list[CodeType] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OWN_FOLDERS):
            codes.append(frame.f_code)

    call.prepare()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    names = {(code.co_filename, qualified_name(code).partition(".<locals>")[0]) for code in codes}
    return {
        "own calls": len(codes),
        "files": len({file for file, _ in names}),
        "classes": len({(file, name.rpartition(".")[0]) for file, name in names if "." in name}),
    }


def qualified_name(code: CodeType) -> str:
    return code.co_qualname


def peak(call: Call) -> int:
    """Return the peak of the bytes that Python and NumPy allocate for the request."""
    call.prepare()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    call()
    return tracemalloc.get_traced_memory()[1] - before


if __name__ == "__main__":
    main()
