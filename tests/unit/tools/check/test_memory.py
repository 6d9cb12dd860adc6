"""What calls leave behind is found; what is loaded once is no leak."""

from __future__ import annotations

from pathlib import Path

from sm.tools.check.memory_growth import WARM_UP_CALLS, find_leak

HERE = Path(__file__).parent
CALLS = WARM_UP_CALLS + 800


def test_a_call_that_keeps_nothing_is_flat() -> None:
    assert find_leak(lambda turn: [turn] * 1000, CALLS, HERE) is None


def test_what_is_kept_once_for_a_few_keys_is_no_leak() -> None:
    kept: dict[int, list[int]] = {}
    assert find_leak(lambda turn: kept.setdefault(turn % 7, [turn] * 1000), CALLS, HERE) is None


def test_one_small_object_with_each_call_is_a_leak_and_has_its_line() -> None:
    kept: list[object] = []

    def call(turn: int) -> None:
        kept.append(f"turn {turn}")

    found = find_leak(call, CALLS, HERE)
    assert found is not None
    assert found.startswith("leak: ")
    assert f"most of it from test_memory.py, line {call.__code__.co_firstlineno + 1}" in found
