"""Processor time of a worker for a request: several checkouts or interpreters in turn, in one run.

    python -m bench.worker_cpu before=.venv/bin/python:../before now=.venv/bin/python:.

Each is ``NAME=PYTHON:TREE``. A worker of each, gunicorn and all, serves on its own socket with one Triton,
whose models are instant; one caller asks them in turn, as nginx would.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from bench.contestants.trireme import ask
from bench.quick import instant_triton
from sm.run_state import Box

CASES = (("bert_base", "json"), ("resnet", "raw"))
DRAWS, REQUESTS, WARM = 7, 400, 20
#: Seconds for a worker to answer, and to stop.
READY_S, STOP_S = 60.0, 40.0


class Worker:
    """gunicorn of one checkout, with one worker."""

    def __init__(self, name: str, python: str, tree: str, environment: dict[str, str]) -> None:
        first = Box.load(Path(environment["TRIREME_RUN_DIR"]))
        run = first.run.parent / f"run-{name}"
        box = replace(first, run=run, id=f"{first.id}-{name}")
        run.mkdir()
        box.save()
        self.socket = str(box.data_socket)
        given = {
            "PYTHONPATH": str(Path(tree).resolve()),
            "TRIREME_RUN_DIR": str(run),
            "PROMETHEUS_MULTIPROC_DIR": str(box.metrics_folder),
            "SAGEMAKER_MODEL_SERVER_WORKERS": "1",
        }
        self.process = subprocess.Popen(
            [str(Path(python).absolute()), "-m", "sm.server.worker", "data"],
            cwd=tree,
            env={**environment, **given},
            stdout=sys.stderr,
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
        """Processor time of the worker so far."""
        for file in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = file.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == self.process.pid:
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        raise RuntimeError("gunicorn has no worker")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(STOP_S)


def request(model: str, form: str) -> bytes:
    """As nginx passes it on."""
    asked = ask(model, form)
    headers = {
        "Host": "localhost",
        "X-Trireme-Request-Id": "0" * 32,
        "X-Trireme-Start": f"{time.time():.3f}",
        "Connection": "close",
        "Content-Length": str(len(asked.body)),
        "Accept": "*/*",
        **asked.headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {asked.path} HTTP/1.1\r\n{lines}\r\n".encode() + asked.body


def draw(worker: Worker, case: tuple[str, str]) -> float:
    """Milliseconds a request."""
    for _ in range(WARM):
        worker.ask(request(*case))
    before = worker.seconds()
    for _ in range(REQUESTS):
        worker.ask(request(*case))
    return (worker.seconds() - before) / REQUESTS * 1000


def main(wanted: list[str]) -> None:
    with instant_triton() as environment:
        workers: dict[str, Worker] = {}
        try:
            for entry in wanted:
                name, _, place = entry.partition("=")
                python, _, tree = place.partition(":")
                workers[name] = Worker(name, python, tree, environment)
            for worker in workers.values():
                worker.wait(request(*CASES[0]))
            found: dict[tuple[str, str], dict[str, list[float]]] = {}
            for _ in range(DRAWS):
                for case in CASES:
                    for name, worker in workers.items():
                        found.setdefault(case, {}).setdefault(name, []).append(draw(worker, case))
        finally:
            for worker in workers.values():
                worker.stop()
    print("| request | worker | median, ms | least, ms | to the first |\n|---|---|---|---|---|")
    for case, draws in found.items():
        first = statistics.median(next(iter(draws.values())))
        for name, each in draws.items():
            middle = statistics.median(each)
            print(f"| {' '.join(case)} | {name} | {middle:.3f} | {min(each):.3f} | {middle / first:.2f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
