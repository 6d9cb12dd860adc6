"""Memory that grows with every call is a leak; memory that is kept once is not."""

from __future__ import annotations

from pathlib import Path

from trireme_tools.check.client_checks import WARM_UP_CALLS, find_leak

HERE = Path(__file__).parent
CALLS = WARM_UP_CALLS + 100


def test_a_cache_with_a_few_keys_is_no_leak() -> None:
    kept: dict[int, list[int]] = {}
    assert find_leak(lambda number: kept.setdefault(number % 7, [number] * 1000), CALLS, HERE) is None
