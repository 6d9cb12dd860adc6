"""Filling masks, without a model: which window of a text, which words, and the sentences they make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Scores = NDArray[np.float64]
#: The first character of a stretch of text, and the one after its last.
Span = tuple[int, int]

#: Scores that are looked at together.
BLOCK_ROWS = 64

#: Marks a word piece that continues the word before it.
CONTINUATION = "##"


def window(length: int, places: Sequence[int], room: int) -> slice:
    """The ``room`` of ``length`` word pieces that have all ``places`` in their middle, as far as can be.

    :raises ValueError: The places lie further apart than ``room``.
    """
    if places[-1] - places[0] >= room:
        raise ValueError(f"the masks lie further apart than {room} word pieces")
    middle = (places[0] + places[-1] + 1 - room) // 2
    start = max(0, min(middle, length - room))
    return slice(start, start + room)


def likeliest(logits: NDArray[Any], barred: Ids, top: int) -> tuple[Ids, Scores]:
    """The ``top`` ids of one row of logits [words], best first, and the logarithm of their probabilities.

    The probabilities are over all words but the ``barred`` ones, which are never among the ids.
    """
    scores = logits.astype(np.float32)
    scores[barred] = -np.inf
    best = scores.max()
    with np.errstate(over="ignore"):  # a logit that far below the best has no share
        # NumPy raises to powers four bytes at a time as fast as it copies; only the sum needs more.
        total = np.exp(scores - best).sum(dtype=np.float64)
    top = min(top, int(np.count_nonzero(scores > -np.inf)))
    # Equal scores in the order of the ids, so that an answer does not depend on how the best were found.
    best_ids = np.flatnonzero(scores >= bound(scores, top))
    best_ids = best_ids[np.argsort(-scores[best_ids], kind="stable")][:top]
    return best_ids, scores[best_ids].astype(np.float64) - np.float64(best) - np.log(total)


def bound(scores: NDArray[np.float32], top: int) -> np.float32:
    """What at least ``top`` of ``scores`` [words] reach, and hardly more.

    So many blocks have a best score over it: their maxima are found in a tenth of the time that
    partitioning all scores takes.
    """
    blocks = len(scores) // BLOCK_ROWS
    maxima = (
        scores[: blocks * BLOCK_ROWS].reshape(blocks, BLOCK_ROWS).max(axis=1) if blocks >= top else scores
    )
    least: np.float32 = np.partition(maxima, -top)[-top]
    return least


def combine(candidates: Sequence[tuple[Ids, Scores]], top: int) -> tuple[Ids, Scores]:
    """The ``top`` best choices of one candidate for every mask: ids [n, masks], scores [n], best first.

    Masks are taken as independent: a choice's score is the sum of its logarithms. The best choices of
    the first masks are all that the best of all can begin with, so no more are kept on the way.
    """
    if len(candidates) == 1:
        ids, scores = candidates[0]
        return ids[:top, None], scores[:top]
    chosen, total = np.empty((1, 0), np.int64), np.zeros(1)
    for ids, scores in candidates:
        sums = (total[:, None] + scores).ravel()
        order = np.argsort(-sums, kind="stable")[:top]
        before, last = np.divmod(order, len(ids))
        chosen = np.column_stack((chosen[before], ids[last]))
        total = sums[order]
    return chosen, total


def fill(text: str, spans: Sequence[Span], words: Sequence[str]) -> str:
    """``text`` with a word in the place of each span; everything else as it was.

    A word piece that continues a word (``##ing``) joins the text before it without a space.
    """
    return "".join(_parts(text, spans, words))


def _parts(text: str, spans: Sequence[Span], words: Sequence[str]) -> Iterator[str]:
    written = 0
    for (start, end), word in zip(spans, words, strict=True):
        between = text[written:start]
        joins = word.startswith(CONTINUATION) and text[:start].strip()
        yield between.rstrip(" ") if joins else between
        yield word.removeprefix(CONTINUATION)
        written = end
    yield text[written:]
