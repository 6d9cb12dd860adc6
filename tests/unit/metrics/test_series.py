"""The workers' series: how many names they may have."""

from __future__ import annotations

from sm.metrics import OTHERS, Labels


def test_names_beyond_the_limit_are_counted_together() -> None:
    """Series are never removed, and callers and archives choose the names."""
    labels = Labels(3, ("total",))
    assert [labels.of(name) for name in ("a", "b", "c", "total", "a")] == ["a", "b", OTHERS, "total", "a"]
