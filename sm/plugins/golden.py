"""Compare an answer with its client's golden one, which another runtime gave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeGuard

#: Tolerances: runtimes differ in the last digits. Numbers above 1 are pixels; others, and the scores of rows,
#: are scores.
TOLERANCE_PX, SCORE_TOLERANCE = 1.0, 0.01


def differences(actual: Any, golden: Any, place: str = "result") -> Iterator[str]:
    """Describe where an answer differs from the golden one: in shape, words, or numbers beyond the
    tolerance.
    """
    if isinstance(golden, list | dict):
        keys = _keys(golden)
        if type(actual) is not type(golden) or _keys(actual) != keys:
            yield f"{place} is {short(actual)}, not {short(golden)}"
            return
        for key in keys:
            yield from differences(actual[key], golden[key], f"{place}[{key!r}]")
    elif not _are_equal(actual, golden):
        yield f"{place} is {short(actual)}, not {short(golden)}"


def _keys(value: list[Any] | dict[str, Any]) -> list[Any]:
    return sorted(value) if isinstance(value, dict) else list(range(len(value)))


def short(value: Any) -> str:
    """Format a value as JSON, cut to a line."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _are_equal(actual: Any, golden: Any) -> bool:
    if _is_number(actual) and _is_number(golden):
        return abs(actual - golden) <= (TOLERANCE_PX if abs(golden) > 1 else SCORE_TOLERANCE)
    if isinstance(actual, str) and isinstance(golden, str):
        return actual == golden or _are_rows_alike(actual, golden)
    return type(actual) is type(golden) and bool(actual == golden)


def _are_rows_alike(actual: str, golden: str) -> bool:
    """Compare rows of a classification, ``11.25:250:250:malamute``."""
    (score, *fields), (golden_score, *others) = actual.split(":"), golden.split(":")
    try:
        return fields == others and abs(float(score) - float(golden_score)) <= SCORE_TOLERANCE
    except ValueError:
        return False


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
