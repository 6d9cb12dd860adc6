"""Models that come and go under callers: none may lose an answer, or get one of another version or model.

    python -m bench.come_and_go replace [--times 200] [--callers 16]
    python -m bench.come_and_go on-demand [--models 1000] [--room 50] [--megabytes 5] [--seconds 120]

Prints a line of figures. docs/run/models.md says what is measured.
"""

from __future__ import annotations

import argparse
import io
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import requests
from PIL import Image

from bench.samples import sample
from sm import hardware
from tests.support.boxes import RunningBox, running_box
from tests.support.model_archives import multiplying_model
from tests.support.multi_model_endpoint import REQUEST_BODY

#: MiB of a small Python model's process, and of Triton without a model.
PROCESS_MB, TRITON_MB = 24, 16


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


def on_demand(options: argparse.Namespace, folder: Path) -> None:
    """Call more models than there is room for, with Zipf's frequencies. Model N answers ``x * (N + 1)``."""
    for number in range(options.models):
        multiplying_model(number + 1).write(folder / "repository" / f"m{number}")
        (folder / "repository" / f"m{number}/1/weights.bin").write_bytes(bytes(options.megabytes * 2**20))
    weights = [1 / (rank + 1) for rank in range(options.models)]
    memory = TRITON_MB + int((PROCESS_MB + options.megabytes) * options.room * 16 / 15)
    hits, misses, wrong = list[float](), list[float](), Counter[str]()

    def call(seed: int, url: str, end: float) -> None:
        chance = random.Random(seed)
        with requests.Session() as session:
            while time.monotonic() < end:
                (number,) = chance.choices(range(options.models), weights)
                row = session.get(f"{url}/models/m{number}", timeout=60).json()
                started = time.monotonic()
                data, error = infer(session, url, f"m{number}")
                (hits if row["state"] == "loaded" else misses).append(time.monotonic() - started)
                if error or data != [number + 1, 2 * number + 2]:
                    wrong[error or str(data)] += 1

    with (
        running_box(
            folder, folder / "repository", TRIREME_MODELS="on-demand", TRIREME_MODEL_MEMORY_MB=str(memory)
        ) as box,
        ThreadPoolExecutor(options.callers) as pool,
    ):
        end = time.monotonic() + options.seconds
        list(pool.map(lambda seed: call(seed, box.url, end), range(options.callers)))
        evictions = box.metric("trireme_model_evictions_total")
    total = len(hits) + len(misses)
    print(f"{options.models} models, room for {options.room}, {total} calls: {dict(wrong) or 'none wrong'};")
    print(f"hit rate {len(hits) / total:.0%}, {evictions:.0f} evictions;")
    for name, times in (("hits", hits), ("misses", misses)):
        cuts = statistics.quantiles(times, n=100)
        print(f"{name}: p50 {1000 * cuts[49]:.0f} ms, p99 {1000 * cuts[98]:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    for name, run in (("replace", replace), ("on-demand", on_demand)):
        command = kinds.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--callers", type=int, default=16)
    kinds.choices["replace"].add_argument("--times", type=int, default=200)
    for option, default in (("models", 1000), ("room", 50), ("megabytes", 5), ("seconds", 120)):
        kinds.choices["on-demand"].add_argument(f"--{option}", type=int, default=default)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        options.run(options, folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
