"""The series stay few, however many models come and go."""

from __future__ import annotations

from sm.metrics import OTHERS, Labels


def test_the_first_names_have_series_of_their_own_and_keep_them() -> None:
    labels = Labels(2)
    assert [labels.of(name) for name in ("a", "b", "c", "a", "d", "b")] == [
        "a",
        "b",
        OTHERS,
        "a",
        OTHERS,
        "b",
    ]
