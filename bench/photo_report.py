"""The report of :mod:`bench.photos`: targets, and a table for each regime and form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

#: The rate against the best peer that each picture should reach: regime, the picture's name.
TARGETS = {
    ("instant", "12 MP, EXIF orientation 6"): 3.0,
    ("instant", "12 MP"): 2.0,
    ("instant", "2 MP"): 1.3,
    ("instant", "0.1 MP"): 0.9,
    ("real", "12 MP, EXIF orientation 6"): 1.6,
}
BOX = "trireme"
#: The share of failed answers over which a measurement says nothing.
FAILED = 0.01
#: Between these the report is written anew; what stands around them in the file is kept.
BEGIN, END = "<!-- bench.photos: begin -->", "<!-- bench.photos: end -->"
Row = Mapping[str, Any]


def write(path: Path, about: Mapping[str, object], photos: Sequence[Any], rows: Sequence[Row]) -> str:
    """Write the report into ``path``; return the text."""
    text = "\n".join(lines(about, photos, rows)) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    before, after = "# Photographs\n\n", ""
    if path.is_file() and BEGIN in path.read_text() and END in path.read_text():
        before, _, others = path.read_text().partition(BEGIN)
        _, _, after = others.partition(END)
    path.write_text(f"{before}{BEGIN}\n{text}{END}{after or chr(10)}")
    return text


def lines(about: Mapping[str, object], photos: Sequence[Any], rows: Sequence[Row]) -> Iterator[str]:
    yield from (f"- {name}: {value}" for name, value in about.items())
    sizes = ", ".join(f"{photo.name} {len(photo.content):,} bytes" for photo in photos)
    yield f"- pictures: {sizes}"
    yield "- 8 callers; medians of the draws; ratios are to the best peer's rate in the same form"
    yield from targets(rows)
    for regime in distinct(rows, "regime"):
        for form in distinct(rows, "form"):
            yield from table(rows, regime, form)
    yield from base64_costs(rows)


def targets(rows: Sequence[Row]) -> Iterator[str]:
    yield "\n| regime, picture | form | best peer | ratio | target | |\n|---|---|---|---|---|---|"
    for (regime, photo), target in TARGETS.items():
        for form in distinct(rows, "form"):
            cell = {"regime": regime, "photo": photo, "form": form}
            own_rate = rate(rows, contestant=BOX, **cell)
            peers = {name: rate(rows, contestant=name, **cell) for name in distinct(rows, "contestant")}
            known = {name: value for name, value in peers.items() if value and name != BOX}
            if own_rate and known:
                best = max(known, key=lambda name: known[name])
                reached = own_rate / known[best]
                verdict = "met" if reached >= target else "missed"
                yield f"| {regime}, {photo} | {form} | {best} | {reached:.2f} | ≥ {target} | {verdict} |"


def table(rows: Sequence[Row], regime: str, form: str) -> Iterator[str]:
    names = [
        name for name in distinct(rows, "contestant") if of(rows, contestant=name, regime=regime, form=form)
    ]
    if not names:
        return
    yield f"\n{regime}, {form}: answers a second, and milliseconds of processor time for each\n"
    yield f"| picture | {' | '.join(names)} |\n|---|{'---|' * len(names)}"
    for photo in distinct(rows, "photo"):
        cells = []
        for name in names:
            measured = of(rows, contestant=name, regime=regime, form=form, photo=photo)
            cost = median(row["cost"] for row in measured) if measured else 0.0
            reached = rate(rows, contestant=name, regime=regime, form=form, photo=photo)
            cells.append(f"{reached:.1f} ({1000 * cost:.1f} ms)" if reached else "-")
        yield f"| {photo} | {' | '.join(cells)} |"


def base64_costs(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the cost of base64 in JSON relative to the same bytes as the body."""
    costs = []
    for photo in distinct(rows, "photo"):
        json, raw = (
            [row["cost"] for row in of(rows, contestant=BOX, regime="instant", form=form, photo=photo)]
            for form in ("json", "raw")
        )
        if json and raw:
            costs.append(f"{photo} {1000 * (median(json) - median(raw)):.1f} ms")
    if costs:
        yield f"\nBase64 in JSON costs the box over the raw body, in processor time: {', '.join(costs)}."


def rate(rows: Sequence[Row], **wanted: object) -> float | None:
    measured = of(rows, **wanted)
    if not measured or any(row["failed"] > FAILED * max(1.0, row["rate"]) for row in measured):
        return None
    return median(row["rate"] for row in measured) or None


def of(rows: Sequence[Row], **wanted: object) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def distinct(rows: Sequence[Row], name: str) -> list[str]:
    return list(dict.fromkeys(row[name] for row in rows))
