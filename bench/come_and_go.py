"""Models that come and go under callers: none may lose an answer, or get one of another version or model.

    python -m bench.come_and_go replace [--times 200] [--callers 16]
    python -m bench.come_and_go on-demand [--models 1000] [--room 50] [--seconds 300] [--rate 20]

Prints a line of figures. docs/run/models.md says what is measured.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import requests
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from bench.samples import sample
from sm import hardware
from sm.models.memory_room import MAX_RESERVED_BYTES, PROCESS_BYTES
from sm.models.on_demand import models_bytes
from sm.run_state import Box
from tests.support.boxes import RunningBox, running_box
from tests.support.model_archives import multiplying_model
from tests.support.multi_model_endpoint import REQUEST_BODY, states
from tests.support.onnx_graphs import save_graph
from trireme_extensions.convert.targets import place_on_cpu

#: Of ``on-demand``. ``rate`` is in calls per second, of all callers together.
DEFAULTS = {"models": 1000, "room": 50, "megabytes": 5, "seconds": 300, "rate": 20}
CONFIG = """backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


def infer(session: requests.Session, url: str, name: str) -> tuple[list[float], str]:
    """Return the answer of a model, and what is wrong if there is none."""
    answer = session.post(f"{url}/invocations", params={"modelname": name}, json=REQUEST_BODY, timeout=120)
    if answer.status_code != 200:
        return [], f"{answer.status_code} {answer.text[:200]}"
    return answer.json()["outputs"][0]["data"], ""


CLIENT = """
import numpy as np

from sm.client import ImagePayload, TensorClient


class Cats(TensorClient):
    model, payload = "cats", ImagePayload

    def preprocess(self, picture):
        return {"x": picture.pixels.mean((0, 1), dtype=np.float32)}

    def postprocess(self, outputs, picture):
        return [VERSION, *outputs["y"].tolist()]
"""


def pictures() -> dict[str, bytes]:
    """Return a JPEG and a PNG of different sizes, by content type."""
    blue = io.BytesIO()
    Image.new("RGB", (64, 48), (10, 20, 200)).save(blue, "PNG")
    return {"image/jpeg": sample("resnet").content, "image/png": blue.getvalue()}


def replace(options: argparse.Namespace, folder: Path) -> None:
    """Replace a model again and again. Version N and its client answer N, and a picture's mean colour * N."""
    repository = folder / "repository"
    counts, done = Counter[str](), threading.Event()
    current = [1, 1]  # the versions that may answer now, from and to

    def write(version: int) -> None:
        multiplying_model(version).write(folder / "staged")
        shutil.rmtree(repository / "cats", ignore_errors=True)
        (repository / "code").mkdir(parents=True, exist_ok=True)
        (folder / "staged").rename(repository / "cats")
        (repository / "code" / "cats.py").write_text(CLIENT.replace("VERSION", str(version)))

    def ask(session: requests.Session, url: str, kind: str) -> tuple[list[float], str]:
        answer = session.post(
            f"{url}/invocations?modelname=cats",
            pictures_sent[kind],
            headers={"Content-Type": kind},
            timeout=120,
        )
        if answer.status_code != 200:
            return [], f"{answer.status_code} {answer.text[:200]}"
        return answer.json()["result"], ""

    def keep_calling(url: str, kind: str) -> None:
        with requests.Session() as session:
            while not done.is_set():
                low = current[0]
                result, error = ask(session, url, kind)
                if error:
                    counts[f"failed: {error}"] += 1
                elif (
                    result[1:] != (means[kind] * np.float32(result[0])).tolist()
                    or not low <= result[0] <= current[1]
                ):
                    counts[f"wrong: {kind} {result} of {low} to {current[1]}"] += 1
                else:
                    counts[f"right, {kind}"] += 1

    write(1)
    pictures_sent = pictures()
    with (
        running_box(
            folder,
            repository,
            clients=(),
            TRIREME_MODEL_POLL="0",
            TRIREME_DRAIN_SECONDS="1",
            TRIREME_RESTARTS="0",
            TRIREME_LOG_SAMPLE="0",
        ) as box,
        ThreadPoolExecutor(options.callers) as pool,
    ):
        with requests.Session() as session:
            means = {kind: np.array(ask(session, box.url, kind)[0][1:], np.float32) for kind in pictures_sent}
        assert len({tuple(mean) for mean in means.values()}) == 2, means
        kinds = [*pictures_sent] * options.callers
        callers = [pool.submit(keep_calling, box.url, kinds[number]) for number in range(options.callers)]
        seconds, tenth = [], max(1, options.times // 10)
        try:
            for version in range(2, options.times + 2):
                write(version)
                current[1], started = version, time.monotonic()
                answer = requests.post(f"{box.url}/models/cats/versions", timeout=300)
                assert answer.json().get("state") == "serves", answer.text
                current[0] = version
                seconds.append(time.monotonic() - started)
                if len(seconds) % tenth == 0:
                    print(f"{len(seconds)} replacements, {resident(box)} MiB, {dict(counts)}", flush=True)
            time.sleep(5)  # the last old version is unloaded
            print(f"the end, {resident(box)} MiB", flush=True)
        finally:
            done.set()
        for caller in callers:
            caller.result()
    print(f"{options.times} replacements under {options.callers} callers: {dict(counts)};")
    print(f"a replacement takes {statistics.median(seconds):.1f} s (median), {max(seconds):.1f} s (most)")


def resident(box: RunningBox) -> int:
    return sum(map(hardware.resident_bytes, hardware.with_descendants(box.process.pid))) >> 20


def write_graph(folder: Path, number: int, megabytes: int) -> list[float]:
    """Write an ONNX model with random weights, ``y = relu(x A) B``, as the box serves ONNX on a CPU.

    Returns its answer to :data:`~tests.support.multi_model_endpoint.REQUEST_BODY`.
    """
    chance, hidden = np.random.default_rng(number), megabytes * 2**20 // 16
    first = chance.standard_normal((2, hidden), np.float32)
    second = chance.standard_normal((hidden, 2), np.float32) / np.float32(hidden**0.5)
    given = {name: (TensorProto.FLOAT, ["b", 2]) for name in "xy"}
    nodes = [
        helper.make_node("MatMul", ["x", "A"], ["sums"]),
        helper.make_node("Relu", ["sums"], ["kept"]),
        helper.make_node("MatMul", ["kept", "B"], ["y"]),
    ]
    weights = numpy_helper.from_array(first, "A"), numpy_helper.from_array(second, "B")
    graph = save_graph(folder / "model.onnx", nodes, {"x": given["x"]}, {"y": given["y"]}, weights)
    (folder / "1").mkdir()
    place_on_cpu(graph, folder / "1")
    (folder / "model.onnx").unlink()
    (folder / "config.pbtxt").write_text(CONFIG)
    x = np.array([REQUEST_BODY["inputs"][0]["data"]], np.float32)
    return [float(value) for value in (np.maximum(x @ first, 0) @ second)[0]]


def on_demand(options: argparse.Namespace, folder: Path) -> None:
    """Call more models than there is room for, with Zipf's frequencies, and one model alone before."""
    expected = [
        write_graph(folder / "repository" / f"m{number}", number, options.megabytes)
        for number in range(options.models)
    ]
    (folder / "one").mkdir()
    shutil.copytree(folder / "repository/m0", folder / "one/m0", copy_function=os.link)
    with running_box(folder, folder / "one", TRIREME_MODELS="on-demand") as box:
        empty = models_bytes(Box.load(box.run_folder()))
        alone = call_models(box, expected[:1], options, min(60, options.seconds))
        model = models_bytes(Box.load(box.run_folder())) - empty
    room = empty + model * options.room
    # What the box keeps for requests, and what must be free for a load.
    reserve = min(MAX_RESERVED_BYTES, room // 15) + PROCESS_BYTES + options.megabytes * 2**20
    memory = (room + reserve) >> 20
    with running_box(
        folder, folder / "repository", TRIREME_MODELS="on-demand", TRIREME_MODEL_MEMORY_MB=str(memory)
    ) as box:
        many = call_models(box, expected, options, options.seconds)
        evictions = box.metric("trireme_model_evictions_total")
        loaded = sum(state == "loaded" for state in states(box).values())
    total = len(many.hits) + len(many.misses)
    print(f"{options.models} ONNX models of {options.megabytes} MB, {options.callers} callers,", end=" ")
    print(f"{total} calls;")
    print(f"room for {options.room} of {model >> 20} MiB in {memory} MiB, {loaded} loaded at the end;")
    print(f"wrong: {dict(many.wrong) or 0}; alone: {dict(alone.wrong) or 0}; too late (429): {many.late};")
    print(f"hit rate {len(many.hits) / total:.1%}, {evictions:.0f} evictions;")
    for name, times in (("hits", many.hits), ("misses", many.misses), ("one model alone", alone.hits)):
        cuts = statistics.quantiles(times, n=100)
        print(f"{name}: p50 {1000 * cuts[49]:.1f} ms, p99 {1000 * cuts[98]:.1f} ms")
    tenth = many.triton[len(many.triton) // 10]
    print(f"Triton's own process, MiB: {tenth} after a tenth, {many.triton[-1]} at the end,", end=" ")
    print(f"{max(many.triton)} at most")


@dataclass
class Calls:
    """What callers saw: seconds of calls, wrong answers by what was wrong, and Triton's MiB over the time."""

    hits: list[float] = field(default_factory=list)
    misses: list[float] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)
    triton: list[int] = field(default_factory=list)
    #: Calls that got a 429 because their model was not loaded in time.
    late: int = 0


def call_models(
    box: RunningBox, expected: list[list[float]], options: argparse.Namespace, seconds: int
) -> Calls:
    """Call models with Zipf's frequencies for some seconds, ``rate`` times a second at most."""
    weights = [1 / (rank + 1) for rank in range(len(expected))]
    calls, end = Calls(), time.monotonic() + seconds

    def call(seed: int) -> None:
        chance = random.Random(seed)
        with requests.Session() as session:
            while time.monotonic() < end:
                (number,) = chance.choices(range(len(expected)), weights)
                row = session.get(f"{box.url}/models/m{number}", timeout=60).json()
                started = time.monotonic()
                data, error = infer(session, box.url, f"m{number}")
                took = time.monotonic() - started
                if error.startswith("429"):  # its load does not end in time
                    calls.late += 1
                    continue
                (calls.hits if row["state"] == "loaded" else calls.misses).append(took)
                if error or not np.allclose(data, expected[number], rtol=1e-3, atol=1e-3):
                    calls.wrong[error or f"m{number}: {data}"] += 1
                time.sleep(max(0.0, options.callers / options.rate - took))

    with ThreadPoolExecutor(options.callers) as pool:
        callers = [pool.submit(call, seed) for seed in range(options.callers)]
        while time.monotonic() < end:
            calls.triton.append(hardware.resident_bytes(box.child("triton")["pid"]) >> 20)
            time.sleep(1)
        for caller in callers:
            caller.result()
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    for name, run in (("replace", replace), ("on-demand", on_demand)):
        command = kinds.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--callers", type=int, default=16)
    kinds.choices["replace"].add_argument("--times", type=int, default=200)
    for option, default in DEFAULTS.items():
        kinds.choices["on-demand"].add_argument(f"--{option}", type=int, default=default)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        options.run(options, folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
