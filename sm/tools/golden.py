"""Whether an answer is its client's golden one, which another runtime gave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeGuard

#: Runtimes differ in the last digits. Numbers above 1 are pixels, others and the scores of rows are scores.
PIXELS, SCORE = 1.0, 0.01


def differences(found: Any, golden: Any, place: str = "result") -> Iterator[str]:
    """Where an answer is another than the golden one: in shape, words, or numbers beyond the tolerance."""
    if isinstance(golden, list | dict):
        keys = _keys(golden)
        if type(found) is not type(golden) or _keys(found) != keys:
            yield f"{place} is {short(found)}, not {short(golden)}"
            return
        for key in keys:
            yield from differences(found[key], golden[key], f"{place}[{key!r}]")
    elif not _alike(found, golden):
        yield f"{place} is {short(found)}, not {short(golden)}"


def _keys(value: list[Any] | dict[str, Any]) -> list[Any]:
    return sorted(value) if isinstance(value, dict) else list(range(len(value)))


def short(value: Any) -> str:
    """A value as JSON, cut where it fills a line."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _alike(found: Any, golden: Any) -> bool:
    if _is_number(found) and _is_number(golden):
        return abs(found - golden) <= (PIXELS if abs(golden) > 1 else SCORE)
    if isinstance(found, str) and isinstance(golden, str):
        return found == golden or _are_rows_alike(found, golden)
    return type(found) is type(golden) and bool(found == golden)


def _are_rows_alike(found: str, golden: str) -> bool:
    """A row of a classification is ``11.25:250:250:malamute``."""
    (score, *rest), (known, *others) = found.split(":"), golden.split(":")
    try:
        return rest == others and abs(float(score) - float(known)) <= SCORE
    except ValueError:
        return False


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
