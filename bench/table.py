"""Results as Markdown: the box against the best other server, then a table for each cell."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from bench.contestant import READY
from bench.measuring import Record
from bench.results import Results, Value

MEGABYTE = 2**20
COLUMNS: Sequence[tuple[str, Value, str]] = (
    ("answers/s", lambda record: record.rate, "{:,.1f}"),
    ("p50 ms", lambda record: 1000 * record.p50, "{:,.1f}"),
    ("p99 ms", lambda record: 1000 * record.p99, "{:,.1f}"),
    ("processor ms/answer", lambda record: 1000 * record.cost, "{:,.2f}"),
    ("peak MB", lambda record: record.memory / MEGABYTE, "{:,.0f}"),
    ("without Triton", lambda record: record.own_memory / MEGABYTE, "{:,.0f}"),
)


def markdown(results: Results) -> str:
    """Return the whole report."""
    return "\n".join([*_head(results), *_ratios(results), *_tables(results)]) + "\n"


def _head(results: Results) -> Iterator[str]:
    for name, value in {**results.machine, **results.settings}.items():
        yield f"- {name}: {value}"
    yield ""
    yield from rows_of(("contestant", "what it is"), results.about.items())
    for name, reason in results.missing.items():
        yield f"\nNot measured: {name}. {reason}"


def _ratios(results: Results) -> Iterator[str]:
    """Yield the box's rate relative to that of the best server that is not a form of the box itself."""
    rows = []
    names = ("regime", "model", "form", "callers")
    for values in itertools.product(*map(results.values, names)):
        cell = dict(zip(names, values, strict=True))
        rates = {
            name: results.median(lambda record: record.rate, contestant=name, **cell) or 0.0
            for name in results.about
        }
        others = [name for name in rates if not name.startswith("trireme")]
        best = max(others, key=lambda name: rates[name], default="")
        if best and rates[best] and rates.get("trireme"):
            rows.append((*map(str, values), best, f"{rates['trireme'] / rates[best]:.2f}"))
    if rows:
        yield "\nThe box's answers a second against those of the best other server, ratios of medians.\n"
        yield from rows_of((*names, "best other", "ratio"), rows)


def _tables(results: Results) -> Iterator[str]:
    """Yield the tables. The floors, which have no form, are beside the services in each."""
    for regime in results.values("regime"):
        for model in results.values("model"):
            for form in (form for form in results.values("form") if form != READY):
                rows = [*_cells(results, regime, model, (form, READY))]
                if rows:
                    yield f"\n{regime}, {model}, {form}: medians of the draws, and the range of answers/s.\n"
                    yield from rows_of(("contestant", "callers", *(column[0] for column in COLUMNS)), rows)


def _cells(results: Results, regime: str, model: str, forms: Sequence[str]) -> Iterator[tuple[str, ...]]:
    cell = {"regime": regime, "model": model}
    for callers in sorted(results.values("callers")):
        for contestant in results.about:
            found = results.of(contestant=contestant, callers=callers, **cell)
            records = [record for record in found if record.form in forms]
            if records:
                yield (contestant, str(callers), *_columns(records))


def _columns(records: Sequence[Record]) -> Iterator[str]:
    failed = sum(record.wrong + record.lost for record in records)
    for number, (_, value, shape) in enumerate(COLUMNS):
        values = sorted(map(value, records))
        middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
        text = shape.format(middle) if middle else "-"
        if number == 0:
            text += f" ({math.floor(values[0])}–{math.ceil(values[-1])})" if len(values) > 1 else ""
            text += f", **{failed} wrong or lost**" if failed else ""
        yield text


def rows_of(head: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
