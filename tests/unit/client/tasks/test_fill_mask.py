"""Filling masks: the window of the text that the model reads, the likeliest words, and the filled text."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm.client.tasks.fill_mask import choose_window, combine, fill, top_words

NO_BARRED_WORDS = np.array([], np.int64)


@pytest.mark.parametrize(
    ("length", "mask_positions", "window_size", "expected"),
    [
        (20, [10], 5, slice(8, 13)),
        (20, [0], 5, slice(0, 5)),
        (20, [19], 5, slice(15, 20)),
        (20, [3, 7], 5, slice(3, 8)),
        (20, [3, 5], 6, slice(1, 7)),
        (6, [2], 5, slice(0, 5)),
    ],
)
def test_the_masks_are_in_the_middle_of_the_window(
    length: int, mask_positions: list[int], window_size: int, expected: slice
) -> None:
    assert choose_window(length, mask_positions, window_size) == expected


@given(st.data())
def test_a_window_is_full_and_holds_every_mask_whenever_possible(data: st.DataObject) -> None:
    window_size = data.draw(st.integers(1, 30))
    length = data.draw(st.integers(window_size + 1, 100))
    first = data.draw(st.integers(0, length - 1))
    last = data.draw(st.integers(first, min(length, first + window_size) - 1))
    window = choose_window(length, [first, last], window_size)
    assert 0 <= window.start <= first <= last < window.stop <= length
    assert window.stop - window.start == window_size


def test_masks_too_far_apart_have_no_window() -> None:
    with pytest.raises(ValueError, match="5"):
        choose_window(20, [3, 8], 5)


def test_the_likeliest_words_come_best_first_with_their_probabilities() -> None:
    ids, scores = top_words(np.log(np.array([0.1, 0.6, 0.05, 0.25], np.float32)), NO_BARRED_WORDS, 3)
    assert ids.tolist() == [1, 3, 0]
    assert np.exp(scores) == pytest.approx([0.6, 0.25, 0.1], abs=1e-6)


def test_barred_words_are_never_proposed_and_have_no_probability() -> None:
    ids, scores = top_words(np.log(np.array([0.5, 0.3, 0.2], np.float32)), np.array([0]), 3)
    assert ids.tolist() == [1, 2]
    assert np.exp(scores) == pytest.approx([0.6, 0.4], abs=1e-6)


def test_equally_likely_words_come_in_the_order_of_the_vocabulary() -> None:
    assert top_words(np.zeros(50, np.float32), NO_BARRED_WORDS, 4)[0].tolist() == [0, 1, 2, 3]


def test_logits_of_any_size_give_probabilities() -> None:
    scores = top_words(np.array([3e38, -3e38, 0], np.float32), NO_BARRED_WORDS, 3)[1]
    assert np.exp(scores).tolist() == [1.0, 0.0, 0.0]


@given(
    st.lists(st.lists(st.floats(-20, 0), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(1, 12),
)
def test_several_masks_get_the_best_combinations(rows: list[list[float]], top: int) -> None:
    """Compared with trying every choice."""
    sorted_rows = [np.sort(np.array(row))[::-1] for row in rows]
    expected = sorted((sum(choice) for choice in itertools.product(*sorted_rows)), reverse=True)[:top]
    best_per_mask = [(np.arange(len(row))[:top], row[:top]) for row in sorted_rows]
    ids, scores = combine(best_per_mask, top)
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
        ("walk[MASK]", ["##ing"], "walking"),
        (" [MASK] home", ["##ing"], " ing home"),
        ("One.\n[MASK] two", ["##s"], "One.\ns two"),
        ("[MASK] [MASK]!", ["walk", "##ed"], "walked!"),
        ("[MASK][MASK]", ["a", "b"], "ab"),
    ],
)
def test_filling_changes_nothing_but_the_masks(text: str, words: list[str], expected: str) -> None:
    spans = [(start, start + 6) for start in range(len(text)) if text.startswith("[MASK]", start)]
    assert fill(text, spans, words) == expected
