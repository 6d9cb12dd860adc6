"""Memory that grows with every call is a leak; memory that is kept once is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trireme_tools.check.client_checks import WARM_UP_CALLS, find_leak

HERE = Path(__file__).parent
CALLS = WARM_UP_CALLS + 100


KEPT: dict[int, list[int]] = {}


@pytest.mark.parametrize(
    "call",
    [lambda number: [number] * 1000, lambda number: KEPT.setdefault(number % 7, [number] * 1000)],
    ids=["nothing is kept", "a cache with a few keys"],
)
def test_what_is_not_kept_for_each_call_is_no_leak(call: Callable[[int], object]) -> None:
    assert find_leak(call, CALLS, HERE) is None


def test_one_small_object_kept_per_call_is_a_leak_reported_with_its_line() -> None:
    kept: list[object] = []

    def keep_a_string(call_number: int) -> None:
        kept.append(f"call {call_number}")

    report = find_leak(keep_a_string, CALLS, HERE)
    assert report is not None
    assert f"test_memory.py, line {keep_a_string.__code__.co_firstlineno + 1}" in report
