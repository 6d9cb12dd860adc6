"""Bars for the terminal."""

from __future__ import annotations

#: Columns of the longest bar.
WIDTH = 40


def bar(value: float, most: float) -> str:
    """``value`` of ``most``; what is too small for a column is still seen."""
    return "█" * round(WIDTH * value / most) or "▏" if value > 0 else ""
