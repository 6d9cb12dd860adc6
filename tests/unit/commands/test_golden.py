"""An answer is compared with the golden one; each difference is reported with its position."""

from __future__ import annotations

from typing import Any

import pytest

from sm.commands.golden import differences


@pytest.mark.parametrize(
    ("answer", "golden", "place"),
    [
        # Small numeric differences are ignored.
        ([0, 0.8798, 261.57], [0, 0.8801, 261.9], None),
        ([{"token": "a", "score": 0.22}], [{"token": "a", "score": 0.224}], None),
        (["11.250001:250:250:malamute"], ["11.249999:250:250:malamute"], None),
        ({"a": None, "b": True}, {"b": True, "a": None}, None),
        ([0.5], [0.52], "result[0]"),
        ([1], [1, 2], "result"),
        ({"a": 1}, {"b": 1}, "result"),
        ([{"token": "a"}], [{"token": "b"}], "result[0]['token']"),
        (["11.25:250:250:malamute"], ["11.25:251:251:husky"], "result[0]"),
        (["11.25:250"], ["11.28:250"], "result[0]"),
        (True, 1, "result"),
        (1.0, None, "result"),
    ],
)
def test_a_difference_is_reported_with_its_position(answer: Any, golden: Any, place: str | None) -> None:
    found = list(differences(answer, golden))
    assert len(found) == (place is not None)
    assert all(difference.startswith(f"{place} is ") for difference in found)
