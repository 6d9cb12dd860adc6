"""The latency of models beside a flooded one: several checkouts in turns, in one run.

    python -m bench.neighbours before=../before now=.

Each is ``NAME=TREE``. The box of each serves the three demo models. 32 callers ask for ``resnet`` without a
rest; beside them one caller asks for another model. A ratio compares that caller's median with its own on an
idle box. All checkouts run with this interpreter.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from statistics import median
from urllib.request import urlopen

from bench.contestants.trireme import ask
from bench.running import free_port
from sm.errors import StartError
from trireme_tools.invoke import load_test
from trireme_tools.invoke.invoke_request import InvokeRequest
from trireme_tools.invoke.load_test import LoadTest
from trireme_tools.invoke.url import Url

FLOODED, FLOOD_CALLERS, NEIGHBOURS = "resnet", 32, ("bert_base", "yolov5")
DRAWS, SECONDS, WARM_S = 3, 12.0, 3.0
#: Seconds for a box to become ready, and to stop.
READY_TIMEOUT_S, STOP_TIMEOUT_S = 120.0, 60.0
MAX_REQUESTS = 1_000_000


@contextmanager
def serving(tree: str) -> Iterator[str]:
    """The box of a checkout, as a URL."""
    port = free_port()
    box = subprocess.Popen(
        [sys.executable, "serve", "--demo"],
        cwd=tree,
        env={**os.environ, "SAGEMAKER_BIND_TO_PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_ready(box, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        box.send_signal(signal.SIGTERM)
        box.wait(STOP_TIMEOUT_S)


def wait_ready(box: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < end and box.poll() is None:
        try:
            with urlopen(f"http://127.0.0.1:{port}/ping", timeout=2):  # loopback
                return
        except OSError:
            time.sleep(0.2)
    raise StartError("the box did not become ready; start it by hand to see why.")


def load(url: str, model: str, callers: int, seconds: float = SECONDS) -> LoadTest:
    request = InvokeRequest(ask(model, "json").body, "application/json")
    with closing(Url(url)) as target:
        return load_test.measure(lambda: target.ask(request), MAX_REQUESTS, callers, seconds)


def median_ms(results: LoadTest) -> float:
    return median(results.latencies) * 1000 if results.latencies else float("nan")


def draw(url: str) -> dict[str, float]:
    """Answers a second of the flooded model, and milliseconds of its neighbours alone and beside it."""
    row: dict[str, float] = {}
    for model in (FLOODED, *NEIGHBOURS):
        load(url, model, 2, WARM_S)
    for model in NEIGHBOURS:
        row[f"{model} alone"] = median_ms(load(url, model, 1, SECONDS / 2))
    flooded = load(url, FLOODED, FLOOD_CALLERS)
    row["flooded"] = len(flooded.latencies) / flooded.seconds
    for model in NEIGHBOURS:
        with ThreadPoolExecutor(1) as executor:
            flood = executor.submit(load, url, FLOODED, FLOOD_CALLERS)
            row[f"{model} beside"] = median_ms(load(url, model, 1))
            results = flood.result()
        row[f"flooded, {model} beside"] = len(results.latencies) / results.seconds
    return row


def main(entries: list[str]) -> None:
    places = dict(entry.split("=", 1) for entry in entries)
    draws: dict[str, list[dict[str, float]]] = {name: [] for name in places}
    for number in range(DRAWS):
        for name, tree in places.items():
            with serving(tree) as url:
                draws[name].append(draw(url))
            print(f"draw {number + 1} of {DRAWS}, {name}: {json.dumps(draws[name][-1])}", file=sys.stderr)
    heads = [f"{model}: alone, beside, ratio" for model in NEIGHBOURS]
    print(f"| box | {FLOODED}/s | {' | '.join(heads)} |\n|---|---|{'---|' * len(heads)}")
    for name, rows in draws.items():
        middle = {key: median(row[key] for row in rows) for key in rows[0]}
        cells = [
            f"{middle[f'{model} alone']:.0f} ms, {middle[f'{model} beside']:.0f} ms, "
            f"{median(row[f'{model} beside'] / row[f'{model} alone'] for row in rows):.2f}"
            for model in NEIGHBOURS
        ]
        print(f"| {name} | {middle['flooded']:.1f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
