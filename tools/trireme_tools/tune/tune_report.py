"""The report of a tuning: Markdown with every point, the choice, its cost, and a plot."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jinja2

from sm.hardware import cores
from sm.run_state import write_atomically
from trireme_tools import charts
from trireme_tools.cost.prices import RequestCost
from trireme_tools.tune import sweep
from trireme_tools.tune.sweep import EQUAL_RATE_SHARE, Point, Setting


@dataclass(frozen=True)
class TuningReport:
    """The content of a report. ``bound`` is in seconds."""

    client: str
    model: str
    bound: float
    points: tuple[Point, ...]
    present: Setting
    best: Point | None
    ended: str = ""
    costs: tuple[RequestCost, ...] = ()
    diff: str = ""

    @property
    def present_best(self) -> Point | None:
        """The best point of the present setting within the bound."""
        return sweep.choose([point for point in self.points if point.setting == self.present], self.bound)


def write(report: TuningReport, folder: Path) -> Iterator[Path]:
    """Write ``report.md`` and, with matplotlib, ``plot.svg``; yield their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    plot = draw_plot(report, folder / "plot.svg")
    if plot:
        yield plot
    path = folder / "report.md"
    write_atomically(path, markdown(report, plot))
    yield path


def summary(report: TuningReport) -> Iterator[str]:
    """Yield the result in a few sentences."""
    bound = f"p99 of {milliseconds(report.bound)}"
    if report.ended:
        yield f"The measuring ended early ({report.ended}); this is the best so far."
    if report.best is None:
        close = sweep.lowest_p99(report.points)
        if close is None:
            yield "No setting answered all requests, so there is nothing to choose from."
        else:
            yield f"No setting keeps a {bound}. The nearest is {format_point(close)}."
        return
    yield f"Best within a {bound}: {format_point(report.best)}."
    present = report.present_best
    if report.best.setting == report.present:
        yield "That is the present setting."
    elif present is None:
        yield f"The present setting ({report.present}) does not keep the bound."
    else:
        yield (
            f"The present setting ({report.present}) gives {present.rate:.1f} a second: "
            f"{report.best.rate / present.rate:.2f} times as many now."
        )
    for cost in report.costs:
        yield (
            f"{cost.instance} at {cost.hourly.normalize():f} USD an hour, if it is as fast as this machine: "
            f"{cost.requests_per_hour:,} requests an hour, {cost.per_million} USD a million."
        )


def format_point(point: Point) -> str:
    """Format a setting with its rate and p99."""
    callers = sweep.format_count(point.callers, "caller")
    return f"{point.setting}; {callers}: {point.rate:.1f} answers a second, p99 {milliseconds(point.p99)}"


def markdown(report: TuningReport, plot: Path | None) -> str:
    environment = jinja2.Environment(  # noqa: S701 - Markdown, not HTML
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"cell": table_cell, "ms": milliseconds}
    template = environment.from_string(Path(__file__).with_name("report.md.jinja").read_text("utf-8"))
    machine = f"{cores()} cores, {processor_name()}"
    now, share = datetime.now(timezone.utc), EQUAL_RATE_SHARE
    return template.render(
        report=report, plot=plot, machine=machine, now=now, share=share, summary=summary(report)
    )


def table_cell(text: str) -> str:
    """Put a text on one line, for a cell of a table."""
    return " ".join(text.split()).replace("|", "/")


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds * 1e3:,.0f} ms"


def processor_name() -> str:
    """Return the processor's name from the kernel."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def draw_plot(report: TuningReport, path: Path) -> Path | None:
    """Plot the throughput against p99, a line for each setting; return None without matplotlib."""
    if find_spec("matplotlib") is None:
        return None

    def draw(figure: Any) -> None:
        panel = figure.subplots()
        for setting in dict.fromkeys(point.setting for point in report.points):
            points = [point for point in report.points if point.setting == setting and point.is_valid]
            if points:
                panel.plot(
                    [point.p99 * 1e3 for point in points],
                    [point.rate for point in points],
                    marker="o",
                    markersize=3,
                    linewidth=1,
                    label=str(setting),
                )
        panel.axvline(report.bound * 1e3, color="grey", linestyle="--", label="the bound")
        if report.best:
            panel.plot(
                report.best.p99 * 1e3,
                report.best.rate,
                marker="*",
                markersize=15,
                color="black",
                linestyle="none",
                label="chosen",
            )
        panel.set_xscale("log")
        panel.set_xlabel("p99 in ms")
        panel.set_ylabel("answers a second")
        panel.set_title(report.model)
        panel.legend(fontsize=7)

    charts.save(path, (8, 5), draw)
    return path
