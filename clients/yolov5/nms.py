"""From the network's 25,200 rows to the objects in the picture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Candidates that are compared, the best by score. Suppression costs candidates times objects kept;
#: at a sensible threshold a picture has some hundreds, and beyond this many only the worst are lost.
MAX_CANDIDATES = 2048
#: Objects given back at most, as in Ultralytics' own post-processing.
MAX_OBJECTS = 300
#: Candidates compared at once: their overlaps stay in the processor's cache.
BLOCK_BOXES = 128

Floats = NDArray[np.float32]
Integers = NDArray[np.intp]
Truths = NDArray[np.bool_]


@dataclass(frozen=True)
class Objects:
    """What was found, best first: ``boxes`` [n, 4] (x1, y1, x2, y2), ``scores`` [n], ``classes`` [n]."""

    boxes: Floats
    scores: Floats
    classes: Integers

    def __len__(self) -> int:
        return len(self.scores)

    def pick(self, which: Integers | Truths) -> Objects:
        return Objects(self.boxes[which], self.scores[which], self.classes[which])


def objects(rows: Floats, confidence: float, iou: float) -> Objects:
    """Rows [n, 5 + classes] (centre x, y, width, height, objectness, classes) to :class:`Objects`.

    A row's score is objectness times its best class. Of two boxes of one class that overlap by more
    than ``iou`` the better stays. Equal scores keep the order of the rows.
    """
    sorted_objects = best(candidates(rows, confidence))
    return sorted_objects.pick(non_maximum_suppression(sorted_objects, iou))


def suppressed(rows: Floats, confidence: float) -> Objects:
    """What a model found that suppresses boxes itself: x1, y1, x2, y2, score, class, best first."""
    sure = rows[rows[:, 4] > confidence]
    return Objects(sure[:, :4], sure[:, 4], sure[:, 5].astype(np.intp))


def candidates(rows: Floats, confidence: float) -> Objects:
    """The rows whose score is over ``confidence``, in their order."""
    hopeful = np.flatnonzero(rows[:, 4] > confidence)  # no class can raise the score over the objectness
    if len(hopeful) < len(rows):
        rows = rows[hopeful]
    classes = rows[:, 5:].argmax(axis=1)
    scores = rows[:, 4] * np.take_along_axis(rows, classes[:, None] + 5, axis=1)[:, 0]
    sure = scores > confidence
    centre, half = rows[sure, :2], rows[sure, 2:4] / 2
    return Objects(np.concatenate([centre - half, centre + half], axis=1), scores[sure], classes[sure])


def best(detected: Objects) -> Objects:
    """The best :data:`CANDIDATES`, best first."""
    if len(detected) > MAX_CANDIDATES:
        least = np.partition(detected.scores, -MAX_CANDIDATES)[-MAX_CANDIDATES]
        detected = detected.pick(detected.scores >= least)
    return detected.pick(np.argsort(-detected.scores, kind="stable")[:MAX_CANDIDATES])


def non_maximum_suppression(detected: Objects, iou: float) -> Integers:
    """Which of the sorted objects stay, at most :data:`OBJECTS`.

    Block by block: what overlaps with an object already kept goes first, then the rest of the block is
    settled among itself.
    """
    stay = np.empty(0, np.intp)
    for start in range(0, len(detected), BLOCK_BOXES):
        block = np.arange(start, min(start + BLOCK_BOXES, len(detected)))
        block = block[~overlapping(detected.pick(block), detected.pick(stay), iou).any(axis=1)]
        among = overlapping(detected.pick(block), detected.pick(block), iou)
        stay = np.concatenate([stay, block[remaining(among)]])
        if len(stay) >= MAX_OBJECTS:
            break
    return stay[:MAX_OBJECTS]


def remaining(overlaps: Truths) -> Integers:
    """Which of n sorted boxes stay, given which overlap [n, n]."""
    covered = np.zeros(len(overlaps), np.bool_)
    stay = []
    for index in range(len(overlaps)):
        if not covered[index]:
            stay.append(index)
            covered |= overlaps[index]
    return np.array(stay, np.intp)


def overlapping(ones: Objects, others: Objects, iou: float) -> Truths:
    """Whether each of ``ones`` [n] is of one class with each of ``others`` [m] and overlaps it: [n, m]."""
    a, b = ones.boxes.T[:, :, None], others.boxes.T[:, None, :]
    width = np.minimum(a[2], b[2]) - np.maximum(a[0], b[0])
    height = np.minimum(a[3], b[3]) - np.maximum(a[1], b[1])
    common = np.maximum(width, 0) * np.maximum(height, 0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    over: Truths = (common > iou * union) & (ones.classes[:, None] == others.classes)
    return over
