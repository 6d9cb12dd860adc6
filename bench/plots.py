"""Results as pictures: bars of throughput, percentiles of latency. Needs matplotlib: the extra ``bench``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.contestant import READY
from bench.contestants import FLOORS
from bench.results import Results

#: What is plotted of latencies.
PERCENTILES = ("p50", "p90", "p99")


def write(results: Results, out: Path) -> Iterator[Path]:
    """Two SVG files for each regime beside ``out``; none, with a sentence, where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        print("no plots: there is no matplotlib; pip install -e '.[bench]'")
        return
    matplotlib.use("svg")
    for regime in results.values("regime"):
        for kind, draw in (("throughput", _throughput), ("latency", _latency)):
            path = out.with_name(f"{out.stem}-{regime}-{kind}.svg")
            _panels(results, regime, draw).savefig(path, bbox_inches="tight")
            yield path


def _panels(results: Results, regime: str, draw: Any) -> Any:
    """Draw a row for each number of callers, a column for each model."""
    from matplotlib.figure import Figure

    callers = sorted({record.callers for record in results.of(regime=regime, form="json")})
    models = results.values("model")
    figure = Figure(figsize=(5 * len(models), 3.2 * len(callers)))
    axes = figure.subplots(len(callers), len(models), squeeze=False)
    for row, count in zip(axes, callers, strict=True):
        for panel, model in zip(row, models, strict=True):
            draw(panel, results, {"regime": regime, "model": model}, count)
            panel.set_title(f"{model}, {regime}, {count} callers")
    figure.tight_layout()
    return figure


def _throughput(panel: Any, results: Results, cell: dict[str, str], callers: int) -> None:
    """Draw a bar for each contestant with JSON bodies; the line spans the draws."""
    for place, (name, records) in enumerate(_contestants(results, cell, callers)):
        rates = sorted(record.rate for record in records)
        middle = (rates[(len(rates) - 1) // 2] + rates[len(rates) // 2]) / 2
        panel.barh(place, middle, color=_colour(name))
        panel.plot((rates[0], rates[-1]), (place, place), color="black", linewidth=1)
    _named(panel, [name for name, _ in _contestants(results, cell, callers)])
    panel.set_xlabel("answers a second")


def _latency(panel: Any, results: Results, cell: dict[str, str], callers: int) -> None:
    """Draw a point at each percentile of each contestant, joined by a line."""
    for place, (name, records) in enumerate(_contestants(results, cell, callers)):
        values = [
            1000 * sorted(getattr(record, percentile) for record in records)[len(records) // 2]
            for percentile in PERCENTILES
        ]
        panel.plot(values, [place] * len(values), color=_colour(name), linewidth=1)
        for value, mark in zip(values, "o|D", strict=True):
            panel.plot(value, place, mark, color=_colour(name))
    _named(panel, [name for name, _ in _contestants(results, cell, callers)])
    panel.set_xscale("log")
    panel.set_xlabel(f"milliseconds: {', '.join(PERCENTILES)}")


def _contestants(results: Results, cell: dict[str, str], callers: int) -> Iterator[tuple[str, list[Any]]]:
    """Yield the contestants that were measured with JSON bodies, and the floors."""
    for name in results.about:
        records = [
            record
            for record in results.of(contestant=name, **cell)
            if record.form in ("json", READY) and (record.callers == callers or name == "loop")
        ]
        if records:
            yield name, records


def _colour(name: str) -> str:
    """This box, the services, the floors."""
    if name.startswith("trireme"):
        return "tab:blue"
    return "silver" if name in FLOORS else "tab:gray"


def _named(panel: Any, names: list[str]) -> None:
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
