"""YOLOv5's tensors to a model and back: shared memory against gRPC bytes, in one run on one Triton.

    .venv/bin/python -m bench.transport [SECONDS]

The model hands out an array that it made at start, so what is timed is the way there and back.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sm.settings import Settings
from sm.triton.transport import Transport
from tests.support.tritons import HEAD, Model, TritonProcess, prepare_triton

ROWS = Model(
    'tensor(request, "images")\nreturn {"output0": self.rows}',
    {"images": ("FP32", [3, 640, 640])},
    {"output0": ("FP32", [25200, 85])},
    max_batch_size=8,
    head=f"{HEAD}        self.rows = np.ones((1, 25200, 85), np.float32)\n",
)
IMAGES = {"images": np.ones((1, 3, 640, 640), np.float32)}
WAYS = {"shared memory": "true", "gRPC bytes": "false"}


@contextmanager
def serving() -> Iterator[TritonProcess]:
    with tempfile.TemporaryDirectory() as folder:
        started = prepare_triton(Path(folder), [])
        ROWS.write(started.box.repository / "rows")
        started.start()
        try:
            yield started
        finally:
            started.stop()


def rate(transport: Transport, callers: int, seconds: float) -> float:
    """Answers a second with so many callers at once."""
    end = time.perf_counter() + seconds

    def call(_: int) -> int:
        count = 0
        while time.perf_counter() < end:
            transport.infer("rows", IMAGES)
            count += 1
        return count

    started = time.perf_counter()
    with ThreadPoolExecutor(callers) as pool:
        total = sum(pool.map(call, range(callers)))
    return total / (time.perf_counter() - started)


def main(seconds: float) -> None:
    with serving() as triton:
        transports = {
            name: Transport(Settings.read({"TRIREME_SHARED_MEMORY": value}), triton.box)
            for name, value in WAYS.items()
        }
        for callers in (1, 8):
            rates = {}
            for name, transport in transports.items():
                rate(transport, callers, 0.5)
                rates[name] = rate(transport, callers, seconds)
                each = callers * 1e3 / rates[name]
                print(f"{callers} callers, {name}: {rates[name]:.0f}/s, {each:.2f} ms each")
            print(f"{callers} callers: {rates['shared memory'] / rates['gRPC bytes']:.1f} times as many")
        for transport in transports.values():
            transport.close()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
