"""An answer is compared with the golden one; each difference is reported with its position."""

from __future__ import annotations

from typing import Any

import pytest

from sm.commands.golden import differences


@pytest.mark.parametrize(
    ("answer", "golden"),
    [
        ([0, 0.8798, 261.57], [0, 0.8801, 261.9]),
        ([{"token": "a", "score": 0.22}], [{"token": "a", "score": 0.224}]),
        (["11.250001:250:250:malamute"], ["11.249999:250:250:malamute"]),
        ({"a": None, "b": True}, {"b": True, "a": None}),
    ],
)
def test_small_numeric_differences_are_ignored(answer: Any, golden: Any) -> None:
    assert list(differences(answer, golden)) == []


@pytest.mark.parametrize(
    ("answer", "golden", "expected_start"),
    [
        ([0.5], [0.52], "result[0] is 0.5, not 0.52"),
        ([262.8], [261.5], "result[0] is 262.8, not 261.5"),
        ([1], [1, 2], "result is [1], not [1, 2]"),
        ({"a": 1}, {"b": 1}, 'result is {"a": 1}, not {"b": 1}'),
        ([{"token": "a"}], [{"token": "b"}], """result[0]['token'] is "a", not "b\""""),
        (["11.25:250:250:malamute"], ["11.25:251:251:husky"], "result[0] is"),
        (["11.25:250"], ["11.28:250"], "result[0] is"),
        (True, 1, "result is true, not 1"),
        ("a", 1, 'result is "a", not 1'),
        (1.0, None, "result is 1.0, not null"),
    ],
)
def test_a_difference_is_reported_with_its_position(answer: Any, golden: Any, expected_start: str) -> None:
    (difference,) = differences(answer, golden)
    assert difference.startswith(expected_start)


def test_every_difference_is_reported() -> None:
    assert len(list(differences([1, 2, 30], [1, 20, 3]))) == 2
