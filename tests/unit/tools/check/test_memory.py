"""Memory that grows with every call is a leak; memory that is kept once is not."""

from __future__ import annotations

from pathlib import Path

from trireme_tools.check.client_checks import WARM_UP_CALLS, find_leak

HERE = Path(__file__).parent
CALLS = WARM_UP_CALLS + 100


def test_a_cache_with_a_few_keys_is_no_leak() -> None:
    kept: dict[int, list[int]] = {}
    assert find_leak(lambda number: kept.setdefault(number % 7, [number] * 1000), CALLS, HERE) is None


def test_one_small_object_kept_per_call_is_a_leak_reported_with_its_line() -> None:
    kept: list[object] = []

    def keep_a_string(call_number: int) -> None:
        kept.append(f"call {call_number}")

    report = find_leak(keep_a_string, CALLS, HERE)
    assert report is not None
    assert f"test_memory.py, line {keep_a_string.__code__.co_firstlineno + 1}" in report
