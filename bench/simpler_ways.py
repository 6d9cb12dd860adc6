"""Processor time of the router's own gRPC client and gunicorn worker, and of simpler ones in their place.

    python -m bench.simpler_ways [ROUNDS]

All ways in turn, ROUNDS times (10), 8 callers. For the clients: the time of this process for one call of a
model that gives back a small tensor, by a real Triton. For the workers: that of the worker's process for one
small request on its socket, answered by an application that does nothing. Triton's time and the caller's are
not in it. ``gain``: what of the own part's saving against the library a simpler way has too.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from gunicorn.workers.gthread import ThreadWorker
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from sm.triton.channel import Channel
from tests.support.tritons import MODELS, TritonProcess, prepare_triton

CALLERS = 8
#: Calls of one way in one round.
CALLS = 400
TIMEOUT_S = 30.0
OWN, LIBRARY = "own", "library"
Ask = Callable[[], None]


def answer(_environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """Answer as the application behind the workers."""
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "3")])
    return [b"yes"]


class PlainSettings(ThreadWorker):  # type: ignore[misc]
    """gthread whose settings are plain attributes: the simplest of what the own worker does."""

    def run(self) -> None:
        self.cfg.__dict__.update({name: setting.get() for name, setting in self.cfg.settings.items()})
        super().run()


WORKERS = {
    OWN: "sm.server.thread_worker.Worker",
    LIBRARY: "gunicorn.workers.gthread.ThreadWorker",
    "gthread, plain settings": "bench.simpler_ways.PlainSettings",
    "gunicorn's sync, a process a caller": "gunicorn.workers.sync.SyncWorker",
}


def run_calls(ask: Ask) -> None:
    """``CALLS`` calls by so many callers at once."""
    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(lambda _: ask(), range(CALLS)))


def own_milliseconds(ask: Ask) -> float:
    began = time.process_time()
    run_calls(ask)
    return (time.process_time() - began) / CALLS * 1e3


@contextmanager
def clients(folder: Path) -> Iterator[dict[str, Callable[[], float]]]:
    serving = prepare_triton(folder, [])
    MODELS["echo"].write(serving.box.repository / "echo")
    serving.start()
    tensor = np.arange(16, dtype=np.float32)
    request = pb.ModelInferRequest(model_name="echo", raw_input_contents=[tensor.tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=(1, 16))
    channels = {
        name: Channel(serving.box.grpc_port, TIMEOUT_S, serving.box.grpc_keys, own_wire=name == OWN)
        for name in (OWN, LIBRARY)
    }
    blocking = grpc.insecure_channel(f"127.0.0.1:{serving.box.grpc_port}")
    stub = service_pb2_grpc.GRPCInferenceServiceStub(blocking)
    keys = tuple(serving.box.grpc_keys.items())

    def check(response: Any) -> None:
        assert response.raw_output_contents[0] == tensor.tobytes()

    def by(channel: Channel) -> Ask:
        return lambda: check(channel.infer(request))

    asks = {name: by(channel) for name, channel in channels.items()}
    asks["grpcio, blocking call"] = lambda: check(stub.ModelInfer(request, timeout=TIMEOUT_S, metadata=keys))
    asks["Triton's HTTP by http.client"] = http_call(serving, tensor)
    try:
        yield {name: partial(own_milliseconds, ask) for name, ask in asks.items()}
    finally:
        for channel in channels.values():
            channel.close()
        blocking.close()
        serving.stop()


def http_call(serving: TritonProcess, tensor: Any) -> Ask:
    content = tensor.tobytes()
    document = {
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": [1, 16],
                "parameters": {"binary_data_size": len(content)},
            }
        ],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }
    thread = threading.local()

    def ask() -> None:
        if not hasattr(thread, "connection"):
            thread.connection = http.client.HTTPConnection(
                "127.0.0.1", serving.box.http_port, timeout=TIMEOUT_S
            )
        head = json.dumps(document).encode()
        headers = {"Inference-Header-Content-Length": str(len(head)), **serving.box.http_keys}
        thread.connection.request("POST", "/v2/models/echo/infer", head + content, headers)
        response = thread.connection.getresponse()
        assert response.read().endswith(content)

    return ask


@contextmanager
def workers(folder: Path) -> Iterator[dict[str, Callable[[], float]]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(worker(kind, folder)) for name, kind in WORKERS.items()}


@contextmanager
def worker(kind: str, folder: Path) -> Iterator[Callable[[], float]]:
    path = folder / f"{kind}.sock"
    processes = CALLERS if "sync" in kind else 1
    master = subprocess.Popen(
        [
            *(sys.executable, "-m", "gunicorn", "bench.simpler_ways:answer", "--worker-class", kind),
            *("--threads", str(CALLERS), "--workers", str(processes), "--keep-alive", "0"),
            *("--bind", f"unix:{path}", "--worker-tmp-dir", str(folder), "--no-control-socket"),
        ],
        stderr=subprocess.DEVNULL,
    )
    body = b'{"modelname":"bert_base","payload":{"text":"The world has [MASK] people."}}'
    request = b"POST /invocations HTTP/1.1\r\nHost: box\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    def ask() -> None:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.settimeout(TIMEOUT_S)
            caller.connect(str(path))
            caller.sendall(request)
            received = b""
            while content := caller.recv(4096):
                received += content
        assert received.endswith(b"yes"), received

    def milliseconds() -> float:
        before = processor_seconds(master.pid)
        run_calls(ask)
        return (processor_seconds(master.pid) - before) / CALLS * 1e3

    try:
        wait_until(ask)
        yield milliseconds
    finally:
        master.terminate()
        master.wait(TIMEOUT_S)


def wait_until(ask: Ask) -> None:
    end = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return ask()
        except (OSError, AssertionError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def processor_seconds(master: int) -> float:
    """Return the processor time of the master's workers, to the nanosecond."""
    children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
    return sum(
        int(task.read_text().split()[0]) / 1e9
        for child in children
        for task in Path(f"/proc/{child}/task").glob("*/schedstat")
    )


def compare(ways: dict[str, Callable[[], float]], rounds: int) -> Iterator[str]:
    """Run each way once without counting, then all in turns."""
    for measure in ways.values():
        measure()
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, measure in ways.items():
            samples[name].append(measure())
    medians = {name: statistics.median(values) for name, values in samples.items()}
    saved = medians[LIBRARY] - medians[OWN]
    yield "| way | ms of processor | against the library | gain |"
    yield "|---|---|---|---|"
    for name, median in medians.items():
        ratios = [value / base for value, base in zip(samples[name], samples[LIBRARY], strict=True)]
        gain = (medians[LIBRARY] - median) / saved
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        yield f"| {name} | {median:.3f} | {spread} | {gain:.0%} |"


def main(rounds: int) -> None:
    for title, measured in (("calls of Triton", clients), ("requests of a worker", workers)):
        with tempfile.TemporaryDirectory() as folder, measured(Path(folder)) as ways:
            print(f"\n{title}, {CALLERS} callers, {rounds} rounds of {CALLS}, {os.cpu_count()} cores\n")
            for line in compare(ways, rounds):
                print(line, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
