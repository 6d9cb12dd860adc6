"""Bars for the terminal, and SVG plots of the commands' results with matplotlib: the extra ``tune``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, SupportsFloat, TextIO

from sm.errors import CommandError

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


#: Inches of a plot's width, of its height without bars, and of each bar.
WIDTH, BASE_HEIGHT, BAR_HEIGHT = 8.0, 1.2, 0.35


def check(file: Path) -> None:
    """Raise :class:`CommandError` unless a plot can be drawn into ``file``. Call it before measuring."""
    if file.suffix != ".svg":
        raise CommandError(f"--plot {file} is not an SVG file: give it the ending .svg.")
    if not file.parent.is_dir():
        raise CommandError(f"--plot {file}: there is no folder {file.parent}.")
    if find_spec("matplotlib") is None:
        raise CommandError("--plot needs matplotlib: pip install 'trireme-serving[tune]'")


def bars(file: Path, title: str, panels: Mapping[str, Mapping[str, SupportsFloat]], unit: str) -> None:
    """Draw a panel of horizontal bars for each entry of ``panels``; ``unit`` is written under them."""
    rows = sum(map(len, panels.values()))
    height = BASE_HEIGHT * len(panels) + BAR_HEIGHT * rows

    def draw(figure: Any) -> None:
        heights = [max(1, len(panel)) for panel in panels.values()]
        axes = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
        for axis, (name, values) in zip(axes, panels.items(), strict=True):
            drawn_bars = axis.barh(range(len(values)), list(map(float, values.values())), color="#2a7f9e")
            axis.set_yticks(range(len(values)), list(values))
            axis.invert_yaxis()
            axis.bar_label(drawn_bars, labels=[f"{value:,.2f}" for value in values.values()], padding=3)
            axis.margins(x=0.15)
            axis.set_title(name, loc="left")
            axis.set_xlabel(unit)
        figure.suptitle(title)

    save(file, (WIDTH, height), draw)


def histogram(file: Path, title: str, milliseconds: Sequence[float], marks: Mapping[str, float]) -> None:
    """Draw how often each time was seen, with a line for each of ``marks``."""

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        axis.hist(list(milliseconds), bins=40, color="#2a7f9e")
        for name, value in marks.items():
            axis.axvline(value, color="black", linestyle="--", linewidth=1)
            axis.annotate(f"{name} {value:.1f}", (value, 1), xycoords=("data", "axes fraction"), rotation=90,
                          va="top", ha="right", fontsize=8)  # fmt: skip
        axis.set_xlabel("ms")
        axis.set_ylabel("requests")
        axis.set_title(title)

    save(file, (WIDTH, 4.0), draw)


def save(file: Path, size: tuple[float, float], draw: Callable[[Any], None]) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib.figure import Figure

    # The same values give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "sm", "svg.fonttype": "none"}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        try:
            figure.savefig(file, format="svg", metadata={"Date": None})
        except OSError as error:
            raise CommandError(f"the plot cannot be written to {file}: {error.strerror}.") from None
