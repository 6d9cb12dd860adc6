"""Filling masks: the window of the text that the model reads, the likeliest words, and the filled text."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm.client.fill_mask import choose_window, combine, fill, top_words


@pytest.mark.parametrize(
    ("length", "masks", "start"),
    [(20, [10], 8), (20, [0], 0), (20, [19], 15), (20, [3, 7], 3), (6, [2], 0)],
)
def test_the_masks_are_in_the_middle_of_the_window(length: int, masks: list[int], start: int) -> None:
    assert choose_window(length, masks, 5) == slice(start, start + 5)


@given(st.data())
def test_a_window_is_full_and_holds_every_mask_whenever_possible(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 30))
    length = data.draw(st.integers(size + 1, 100))
    first = data.draw(st.integers(0, length - 1))
    last = data.draw(st.integers(first, length - 1))
    if last - first >= size:
        with pytest.raises(ValueError, match=str(size)):
            choose_window(length, [first, last], size)
        return
    window = choose_window(length, [first, last], size)
    assert 0 <= window.start <= first <= last < window.stop <= length
    assert window.stop - window.start == size


@pytest.mark.parametrize(
    ("logits", "barred", "ids", "probabilities"),
    [
        (np.log([0.1, 0.6, 0.05, 0.25]), [], [1, 3, 0], [0.6, 0.25, 0.1]),
        (np.log([0.5, 0.3, 0.2]), [0], [1, 2], [0.6, 0.4]),
        ([0] * 50, [], [0, 1, 2], [0.02] * 3),
        ([3e38, -3e38, 0], [], [0, 2, 1], [1, 0, 0]),
    ],
)
def test_the_likeliest_words_come_best_first_and_barred_ones_never(
    logits: list[float], barred: list[int], ids: list[int], probabilities: list[float]
) -> None:
    found, scores = top_words(np.array(logits, np.float32), np.array(barred, np.int64), 3)
    assert found.tolist() == ids
    assert np.exp(scores) == pytest.approx(probabilities, abs=1e-6)


@given(
    st.lists(st.lists(st.floats(-20, 0), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(1, 12)
)
def test_several_masks_get_the_best_combinations(rows: list[list[float]], top: int) -> None:
    """Compared with trying every choice."""
    sorted_rows = [np.sort(np.array(row))[::-1] for row in rows]
    expected = sorted((sum(choice) for choice in itertools.product(*sorted_rows)), reverse=True)[:top]
    ids, scores = combine([(np.arange(len(row))[:top], row[:top]) for row in sorted_rows], top)
    assert scores == pytest.approx(expected)
    assert ids.shape == (len(expected), len(rows))
    for choice, score in zip(ids, scores, strict=True):
        assert sum(row[index] for row, index in zip(sorted_rows, choice, strict=True)) == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("The World has [MASK] People.", ["many"], "The World has many People."),
        ("  [MASK]\tÉ́😀  ", ["a"], "  a\tÉ́😀  "),
        ("un[MASK]able", ["believ"], "unbelievable"),
        ("She was walk [MASK] home.", ["##ing"], "She was walking home."),
        (" [MASK] home", ["##ing"], " ing home"),
        ("One.\n[MASK] two", ["##s"], "One.\ns two"),
        ("[MASK] [MASK]!", ["walk", "##ed"], "walked!"),
    ],
)
def test_filling_changes_nothing_but_the_masks(text: str, words: list[str], expected: str) -> None:
    spans = [(start, start + 6) for start in range(len(text)) if text.startswith("[MASK]", start)]
    assert fill(text, spans, words) == expected
