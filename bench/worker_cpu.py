"""Processor time of a worker for a request: several checkouts or interpreters in turn, in one run.

    python -m bench.worker_cpu before=.venv/bin/python:../before now=.venv/bin/python:.

Each is ``NAME=PYTHON:CHECKOUT``. A worker of each, gunicorn and all, serves on its own socket with one
Triton, whose models are instant; one caller asks them in turn, as nginx would: with the clients' samples, and
with photographs of :mod:`bench.photos`.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from bench import tree
from bench.contestants.trireme import ask
from bench.driver import Request
from bench.photos import photos
from bench.quick import instant_triton
from bench.samples import Sample
from sm.run_state import Box
from sm.server.supervisor import ports

#: Which of the photographs are sent; those of 12 megapixels take long.
PHOTOS = ("0.1 MP", "2 MP")
DRAWS, REQUESTS, WARM = 7, 400, 20
#: Seconds for a worker to answer, and to stop.
READY_S, STOP_S = 60.0, 40.0


class Worker:
    """gunicorn of one checkout, with one worker."""

    def __init__(self, name: str, python: str, checkout: str, environment: dict[str, str]) -> None:
        first = Box.load(Path(environment["TRIREME_RUN_DIR"]))
        run = first.run.parent / f"run-{name}"
        box = replace(first, run=run, id=f"{first.id}-{name}")
        run.mkdir()
        box.save()
        self.socket = str(box.data_socket)
        self._listener = ports.bind_workers(box.data_socket)
        variables = {
            "TRIREME_LISTENER": str(self._listener.fileno()),
            "PYTHONPATH": str(Path(checkout).resolve()),
            "TRIREME_RUN_DIR": str(run),
            "PROMETHEUS_MULTIPROC_DIR": str(box.metrics_folder),
            "SAGEMAKER_MODEL_SERVER_WORKERS": "1",
        }
        self.process = subprocess.Popen(
            [str(Path(python).absolute()), "-m", "sm.server.worker", "data"],
            cwd=checkout,
            env={**environment, **variables},
            stdout=sys.stderr,
            pass_fds=(self._listener.fileno(),),
        )

    def wait(self, data: bytes) -> None:
        until = time.monotonic() + READY_S
        while True:
            try:
                return self.ask(data)
            except (OSError, RuntimeError):
                if self.process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def ask(self, data: bytes) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.socket)
            connection.sendall(data)
            answer = b""
            while piece := connection.recv(2**16):
                answer += piece
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer[:300].decode(errors="replace"))

    def seconds(self) -> float:
        """Return the processor time of the worker so far, its ended threads included."""
        (worker,) = tree.descendants(self.process.pid)
        # The clock of another process, as clock_getcpuclockid(3) makes it: exact where ticks are 10 ms.
        return time.clock_gettime(~worker << 3 | 2)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(STOP_S)
        self._listener.close()


def cases() -> dict[str, Request]:
    """Return the requests by name."""
    samples = {
        f"{model} {form}": ask(model, form) for model, form in (("bert_base", "json"), ("resnet", "raw"))
    }
    photographs = {
        f"resnet raw, {photo.name}": ask(
            "resnet", "raw", Sample(photo.content, photo.content_type, photo.expected)
        )
        for photo in photos()
        if photo.name in PHOTOS
    }
    return {**samples, **photographs}


def encode(request: Request) -> bytes:
    """Encode a request as nginx passes it on."""
    headers = {
        "Host": "localhost",
        "X-Trireme-Request-Id": "0" * 32,
        "X-Trireme-Start": f"{time.time():.3f}",
        "Connection": "close",
        "Content-Length": str(len(request.body)),
        "Accept": "*/*",
        **request.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {request.path} HTTP/1.1\r\n{lines}\r\n".encode() + request.body


def draw(worker: Worker, request: Request) -> float:
    """Return the milliseconds of processor time for a request."""
    for _ in range(WARM):
        worker.ask(encode(request))
    before = worker.seconds()
    for _ in range(REQUESTS):
        worker.ask(encode(request))
    return (worker.seconds() - before) / REQUESTS * 1000


def main(entries: list[str]) -> None:
    requests = cases()
    with instant_triton() as environment:
        workers: dict[str, Worker] = {}
        try:
            for entry in entries:
                name, _, place = entry.partition("=")
                python, _, checkout = place.partition(":")
                workers[name] = Worker(name, python, checkout, environment)
            for worker in workers.values():
                worker.wait(encode(next(iter(requests.values()))))
            draws_by_case: dict[str, dict[str, list[float]]] = {}
            for number in range(DRAWS):
                for case, request in requests.items():
                    # In the other order every second time: who comes first finds the caches of another case.
                    for name, worker in list(workers.items())[:: -1 if number % 2 else 1]:
                        draws_by_case.setdefault(case, {}).setdefault(name, []).append(draw(worker, request))
        finally:
            for worker in workers.values():
                worker.stop()
    print("| request | worker | median, ms | least, ms | to the first |\n|---|---|---|---|---|")
    for case, draws in draws_by_case.items():
        first = statistics.median(next(iter(draws.values())))
        for name, milliseconds in draws.items():
            middle = statistics.median(milliseconds)
            print(f"| {case} | {name} | {middle:.3f} | {min(milliseconds):.3f} | {middle / first:.2f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
