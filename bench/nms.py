"""Milliseconds of the yolov5 client's post-processing: python -m bench.nms [ROUNDS].

Rows are made up: a few objects, a crowd, and the worst cases, where every one of the 25,200 rows is
over the threshold.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import numpy as np

from clients.yolov5.nms import Floats, detect_objects

ROWS, CLASSES, SIZE = 25_200, 80, 640


def random_rows(random: np.random.Generator, objects_there: int, share: float, classes: int) -> Floats:
    """Return random rows; a ``share`` is over the threshold, in clusters around ``objects_there`` boxes."""
    rows: Floats = random.random((ROWS, 5 + CLASSES), np.float32)
    rows *= 0.3
    sure = random.random(ROWS) < share
    object_of_row = random.integers(0, objects_there, ROWS)
    middles = random.uniform(0, SIZE, (objects_there, 2))[object_of_row]
    rows[:, :2] = middles + random.normal(0, 2, (ROWS, 2))
    rows[:, 2:4] = random.uniform(30, 36, (ROWS, 2))
    rows[:, 4] = np.where(sure, random.uniform(0.8, 1, ROWS), 0.01)
    rows[np.arange(ROWS), 5 + object_of_row % classes] = random.uniform(0.8, 1, ROWS)
    return rows


def cases(random: np.random.Generator) -> Iterator[tuple[str, Floats]]:
    yield "nothing", random_rows(random, 1, 0, 1)
    yield "5 objects, 60 rows", random_rows(random, 5, 60 / ROWS, 5)
    yield "100 objects, 2,000 rows", random_rows(random, 100, 2000 / ROWS, 80)
    yield "every row, 1 object", random_rows(random, 1, 1, 1)
    yield "every row, 100 objects", random_rows(random, 100, 1, 80)
    yield "every row, 250 objects of one class", random_rows(random, 250, 1, 1)
    yield "every row, 25,200 objects of one class", random_rows(random, ROWS, 1, 1)
    yield "every row, 25,200 objects of 80 classes", random_rows(random, ROWS, 1, 80)


def main(rounds: int) -> None:
    print(f"{'rows over the threshold':42} {'kept':>5} {'best ms':>8} {'median ms':>10}")
    for name, rows in cases(np.random.default_rng(0)):
        times = []
        for _ in range(rounds):
            started = time.perf_counter()
            objects = detect_objects(rows, 0.5, 0.45)
            times.append(1000 * (time.perf_counter() - started))
        print(f"{name:42} {len(objects):5} {min(times):8.2f} {np.median(times):10.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
