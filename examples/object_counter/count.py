"""Count the objects in a folder of pictures: ``python count.py FOLDER [BOX]``."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

TYPES = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".webp": "image/webp"}
#: Pictures that are sent at the same time.
CALLERS = 4


def count(box: str, picture: Path) -> Counter[str]:
    """Return how many objects of each label the picture has. Raises :class:`RuntimeError` with the reason."""
    request = urllib.request.Request(  # noqa: S310 - the address is the caller's
        f"{box}/invocations?modelname=counter",
        picture.read_bytes(),
        {"Content-Type": TYPES[picture.suffix.lower()]},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
            return Counter(row["label"] for row in json.load(response)["result"])
    except urllib.error.HTTPError as error:
        raise RuntimeError(json.load(error)["error"]) from None


def report(box: str, folder: Path) -> Iterator[str]:
    """Yield a line for each picture, and one for all of them."""
    pictures = sorted(path for path in folder.iterdir() if path.suffix.lower() in TYPES)
    total: Counter[str] = Counter()
    with ThreadPoolExecutor(CALLERS) as callers:
        futures = [callers.submit(partial(count, box, picture)) for picture in pictures]
        for picture, future in zip(pictures, futures, strict=True):
            try:
                counts = future.result()
            except RuntimeError as error:  # the other pictures still count
                yield f"{picture.name}: {error}"
                continue
            total += counts
            yield f"{picture.name}: {words(counts)}"
    yield f"{len(pictures)} pictures: {words(total)}"


def words(counts: Counter[str]) -> str:
    """Format the counts, the largest first."""
    return ", ".join(f"{number} {label}" for label, number in counts.most_common()) or "nothing"


if __name__ == "__main__":
    for line in report(sys.argv[2] if len(sys.argv) > 2 else "http://localhost:8080", Path(sys.argv[1])):
        print(line)  # noqa: T201
