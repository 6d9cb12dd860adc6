"""Fill masks without a model: choose the window of a text, the best words, and write the sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Scores = NDArray[np.float64]
#: The first character of a part of a text, and the one after its last.
Span = tuple[int, int]

#: Scores in one block, of which only the maximum is compared first.
BLOCK_SCORES = 64

#: Marks a word piece that continues the word before it.
CONTINUATION = "##"


def choose_window(length: int, positions: Sequence[int], size: int) -> slice:
    """Choose ``size`` of ``length`` word pieces so that ``positions`` are as near its middle as possible.

    Raises:
        ValueError: The positions are further apart than ``size``.
    """
    if positions[-1] - positions[0] >= size:
        raise ValueError(f"the masks lie further apart than {size} word pieces")
    centred = (positions[0] + positions[-1] + 1 - size) // 2
    start = max(0, min(centred, length - size))
    return slice(start, start + size)


def top_words(logits: NDArray[Any], excluded: Ids, top: int) -> tuple[Ids, Scores]:
    """Return the ``top`` ids of one row of logits [words], best first, and their log probabilities.

    The words in ``excluded`` are never among the ids and have no share of the probability.
    """
    scores = logits.astype(np.float32)
    scores[excluded] = -np.inf
    best = scores.max()
    with np.errstate(over="ignore"):  # a logit far below the best one underflows to probability 0
        # float32 is precise enough for the powers and much faster; only the sum needs float64.
        total = np.exp(scores - best).sum(dtype=np.float64)
    top = min(top, int(np.count_nonzero(scores > -np.inf)))
    # Equal scores keep the order of the ids, so that the answer does not depend on how they were found.
    best_ids = np.flatnonzero(scores >= lower_bound(scores, top))
    best_ids = best_ids[np.argsort(-scores[best_ids], kind="stable")][:top]
    return best_ids, scores[best_ids].astype(np.float64) - np.float64(best) - np.log(total)


def lower_bound(scores: NDArray[np.float32], top: int) -> np.float32:
    """Return a bound that at least ``top`` of ``scores`` [words] reach, and few more.

    It is the ``top``-th best maximum of a block. Finding the maxima takes a tenth of the time that
    partitioning all scores takes.
    """
    blocks = len(scores) // BLOCK_SCORES
    maxima = (
        scores[: blocks * BLOCK_SCORES].reshape(blocks, BLOCK_SCORES).max(axis=1) if blocks >= top else scores
    )
    bound: np.float32 = np.partition(maxima, -top)[-top]
    return bound


def combine(candidates: Sequence[tuple[Ids, Scores]], top: int) -> tuple[Ids, Scores]:
    """Choose one candidate for every mask: the ``top`` best choices, ids [n, masks] and scores [n].

    The masks count as independent: the score of a choice is the sum of its log probabilities. A best
    choice for all masks begins with a best choice for the first ones, so ``top`` partial choices are enough.
    """
    if len(candidates) == 1:
        ids, scores = candidates[0]
        return ids[:top, None], scores[:top]
    choices, totals = np.empty((1, 0), np.int64), np.zeros(1)
    for ids, scores in candidates:
        sums = (totals[:, None] + scores).ravel()
        order = np.argsort(-sums, kind="stable")[:top]
        previous, last = np.divmod(order, len(ids))
        choices = np.column_stack((choices[previous], ids[last]))
        totals = sums[order]
    return choices, totals


def fill(text: str, spans: Sequence[Span], words: Sequence[str]) -> str:
    """Replace each span of ``text`` by a word; everything else stays as it is.

    A word piece that continues a word (``##ing``) joins the text before it without a space.
    """
    filled, end_of_last = "", 0
    for (start, end), word in zip(spans, words, strict=True):
        filled += text[end_of_last:start]
        if word.startswith(CONTINUATION):
            word = word.removeprefix(CONTINUATION)
            if text[:start].strip():
                filled = filled.rstrip(" ")
        filled += word
        end_of_last = end
    return filled + text[end_of_last:]
