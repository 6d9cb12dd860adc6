"""Make typical inputs for ``sm build-model --calibration``: parts of pictures, and sentences with a mask.

``python -m bench.int8_inputs OUT PICTURE…`` makes ``OUT/pictures`` and ``OUT/texts/texts.txt``. The sentences
are those of the documentation here. ``--seed`` and ``--count`` make others, for :mod:`bench.int8_held_out`.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np
from PIL import Image

from sm.settings import HERE

#: Inputs of each kind.
COUNT = 165
#: The least side of a part, as a share of the picture's.
LEAST = 0.5
SENTENCE = re.compile(r"[A-Z][a-z]+(?: [a-z,]+){4,14}\.")


def main(out: Path, pictures: list[Path], seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    for folder in ("pictures", "texts"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = pictures[number % len(pictures)]
        picture = Image.open(path).convert("RGB")
        width, height = (int(side * rng.uniform(LEAST, 1)) for side in picture.size)
        left, top = rng.integers(0, picture.width - width + 1), rng.integers(0, picture.height - height + 1)
        part = picture.crop((int(left), int(top), int(left) + width, int(top) + height))
        part.save(out / "pictures" / f"{number:03d}-{path.stem}.jpg", quality=92)
    pages = " ".join(path.read_text("utf-8") for path in sorted((HERE / "docs").rglob("*.md")))
    sentences = sorted(set(SENTENCE.findall(pages)))
    lines = []
    for sentence in rng.choice(sentences, count, replace=False):
        words = sentence.rstrip(".").split()
        words[int(rng.integers(1, len(words)))] = "[MASK]"
        lines.append(" ".join(words) + ".")
    (out / "texts" / "texts.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("pictures", type=Path, nargs="+")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--count", type=int, default=COUNT)
    given = parser.parse_args()
    main(given.out, given.pictures, given.seed, given.count)
