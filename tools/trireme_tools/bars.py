"""Bars for the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TextIO

#: Columns of the longest bar.
MAX_COLUMNS = 40
BAR = r"[█▏]+"


def bar(value: float, most: float) -> str:
    """Return a bar for ``value`` of ``most``; a small value still gets a visible bar."""
    return "█" * round(MAX_COLUMNS * value / most) or "▏" if value > 0 else ""


def show(lines: Iterable[str], stream: TextIO) -> None:
    """Write lines with bars: in colour on a terminal, as they are elsewhere."""
    if not stream.isatty():
        stream.writelines(f"{line}\n" for line in lines)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    for line in lines:
        text = Text(line)
        text.highlight_regex(re.compile(BAR), "cyan")
        console.print(text, soft_wrap=True)
