"""Turn the network's 25,200 rows into the objects of a picture: threshold, then non-maximum suppression."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Candidates that are compared, the best by score. The cost is candidates times objects; at a usual
#: threshold a picture has some hundreds, and only the worst of more are lost.
MAX_CANDIDATES = 2048
#: The most objects of an answer, as in the reference system.
MAX_OBJECTS = 1000
#: Candidates compared at once: their overlaps stay in the processor's cache.
BLOCK_BOXES = 128

Floats = NDArray[np.float32]
Integers = NDArray[np.intp]
Truths = NDArray[np.bool_]


@dataclass(frozen=True)
class Objects:
    """Detected objects: ``boxes`` [n, 4] (x1, y1, x2, y2), ``scores`` [n], ``classes`` [n]."""

    boxes: Floats
    scores: Floats
    classes: Integers

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, which: Integers | Truths) -> Objects:
        return Objects(self.boxes[which], self.scores[which], self.classes[which])


def detect_objects(rows: Floats, confidence: float, iou: float) -> Objects:
    """Find the objects in rows [n, 5 + classes] (centre x, y, width, height, objectness, classes).

    A row's score is its objectness times its best class. Of two boxes of one class that overlap by more
    than ``iou`` the one with the better score stays. Equal scores keep the order of the rows.

    Returns:
        The objects, best first, at most :data:`MAX_OBJECTS`.
    """
    sorted_candidates = sort_best(select_candidates(rows, confidence))
    return sorted_candidates[suppress(sorted_candidates, iou)]


def read_objects(rows: Floats, confidence: float) -> Objects:
    """Read the rows [n, 6] (x1, y1, x2, y2, score, class) of a model that suppresses boxes itself."""
    rows = rows[rows[:, 4] > confidence]
    return Objects(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.intp))


def select_candidates(rows: Floats, confidence: float) -> Objects:
    """Select the rows with a score over ``confidence``, in their order."""
    possible = np.flatnonzero(rows[:, 4] > confidence)  # a score is at most the objectness
    if len(possible) < len(rows):
        rows = rows[possible]
    classes = rows[:, 5:].argmax(axis=1)
    scores = rows[:, 4] * np.take_along_axis(rows, classes[:, None] + 5, axis=1)[:, 0]
    selected = scores > confidence
    centre, half = rows[selected, :2], rows[selected, 2:4] / 2
    boxes = np.concatenate([centre - half, centre + half], axis=1)
    return Objects(boxes, scores[selected], classes[selected])


def sort_best(candidates: Objects) -> Objects:
    """Sort the best :data:`MAX_CANDIDATES` candidates, best first."""
    if len(candidates) > MAX_CANDIDATES:
        least = np.partition(candidates.scores, -MAX_CANDIDATES)[-MAX_CANDIDATES]
        candidates = candidates[candidates.scores >= least]
    return candidates[np.argsort(-candidates.scores, kind="stable")[:MAX_CANDIDATES]]


def suppress(candidates: Objects, iou: float) -> Integers:
    """Return the indices of the sorted candidates that stay, at most :data:`MAX_OBJECTS`.

    Each block is first compared with the objects that already stay, then with itself.
    """
    stay = np.empty(0, np.intp)
    for start in range(0, len(candidates), BLOCK_BOXES):
        block = np.arange(start, min(start + BLOCK_BOXES, len(candidates)))
        block = block[~find_overlaps(candidates[block], candidates[stay], iou).any(axis=1)]
        overlaps = find_overlaps(candidates[block], candidates[block], iou)
        stay = np.concatenate([stay, block[suppress_block(overlaps)]])
        if len(stay) >= MAX_OBJECTS:
            break
    return stay[:MAX_OBJECTS]


def suppress_block(overlaps: Truths) -> Integers:
    """Return the indices of the sorted boxes that stay, given which of them overlap [n, n]."""
    covered = np.zeros(len(overlaps), np.bool_)
    stay = []
    for index in range(len(overlaps)):
        if not covered[index]:
            stay.append(index)
            covered |= overlaps[index]
    return np.array(stay, np.intp)


def find_overlaps(some: Objects, others: Objects, iou: float) -> Truths:
    """Return for ``some`` [n] and ``others`` [m] which have the same class and overlap: [n, m]."""
    a, b = some.boxes.T[:, :, None], others.boxes.T[:, None, :]
    width = np.minimum(a[2], b[2]) - np.maximum(a[0], b[0])
    height = np.minimum(a[3], b[3]) - np.maximum(a[1], b[1])
    common = np.maximum(width, 0) * np.maximum(height, 0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    overlaps: Truths = (common > iou * union) & (some.classes[:, None] == others.classes)
    return overlaps
