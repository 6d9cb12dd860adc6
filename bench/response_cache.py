"""What Triton's response cache is worth: one picture sent again and again, with and without it, in one run.

    python -m bench.response_cache [--times 1000] [--callers 4] [--rounds 2]

Two boxes with the demo's ResNet take turns. Prints the answers of a second of each, which are all compared.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import requests

from sm.settings import HERE, Settings
from tests.support.boxes import RunningBox, running_box
from tests.support.tritons import cached_ensemble
from trireme_tools.prepare.demo import prepare

PICTURE = HERE / "clients" / "resnet" / "sample" / "coffee.jpg"
#: MiB.
CACHE = "64"
WARM = 20


def write_repository(source: Path, repository: Path) -> None:
    """Copy ResNet into an ensemble of its name, which asks for the cache."""
    part, around = repository / "resnet_part", repository / "resnet"
    shutil.copytree(source / "resnet", part)
    shutil.copytree(source / "resnet", around, ignore=shutil.ignore_patterns("1"))
    (around / "1").mkdir()
    config = part / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "resnet"', 'name: "resnet_part"', 1))
    (around / "config.pbtxt").write_text(cached_ensemble(part))


def send(box: RunningBox, callers: int, times: int) -> tuple[float, set[bytes]]:
    """Send the picture; return the answers of a second, and the different ones."""
    picture, local = PICTURE.read_bytes(), threading.local()

    def ask(_: int) -> bytes:
        session = local.__dict__.setdefault("session", requests.Session())
        answer = session.post(
            f"{box.url}/invocations",
            params={"modelname": "resnet"},
            data=picture,
            headers={"Content-Type": "image/jpeg"},
            timeout=60,
        )
        answer.raise_for_status()
        return bytes(answer.content)

    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(ask, range(WARM)))
        began = time.perf_counter()
        answers = set(pool.map(ask, range(times)))
        return times / (time.perf_counter() - began), answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--callers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    settings = Settings.read({})
    prepare(settings)
    folder = Path(tempfile.mkdtemp())
    rates: dict[str, list[float]] = {"with": [], "without": []}
    answers: set[bytes] = set()
    try:
        write_repository(settings.cache / "repository" / "cpu", folder / "repository")
        with ExitStack() as stack:
            boxes = {}
            for name, size in (("with", CACHE), ("without", "0")):
                (folder / name).mkdir()
                box = running_box(folder / name, folder / "repository", TRIREME_RESPONSE_CACHE_MB=size)
                boxes[name] = stack.enter_context(box)
            for number in range(options.rounds):
                for name in sorted(rates, reverse=bool(number % 2)):
                    rate, found = send(boxes[name], options.callers, options.times)
                    rates[name].append(rate)
                    answers |= found
            hits = boxes["with"].metric("nv_cache_num_hits_per_model", model="resnet")
            misses = boxes["with"].metric("nv_cache_num_misses_per_model", model="resnet")
    finally:
        shutil.rmtree(folder)
    for name, each in rates.items():
        rounds = ", ".join(f"{rate:,.0f}" for rate in each)
        print(f"{name} the cache: {statistics.median(each):,.0f} answers/s ({rounds})")
    print(f"{hits:,.0f} hits, {misses:,.0f} misses, {len(answers)} different answers")


if __name__ == "__main__":
    main()
