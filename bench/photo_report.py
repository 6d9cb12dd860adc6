"""The report of :mod:`bench.photos`: targets, a table for each regime and form, a plot."""

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
    """Write the report into ``path`` and the plot beside it; return the text."""
    text = "\n".join(lines(about, photos, rows, plot(path, rows))) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    before, after = "# Photographs\n\n", ""
    if path.is_file() and BEGIN in path.read_text() and END in path.read_text():
        before, _, others = path.read_text().partition(BEGIN)
        _, _, after = others.partition(END)
    path.write_text(f"{before}{BEGIN}\n{text}{END}{after or chr(10)}")
    return text


def lines(
    about: Mapping[str, object], photos: Sequence[Any], rows: Sequence[Row], plotted: str
) -> Iterator[str]:
    yield from (f"- {name}: {value}" for name, value in about.items())
    sizes = ", ".join(f"{photo.name} {len(photo.content):,} bytes" for photo in photos)
    yield f"- pictures: {sizes}"
    yield "- 8 callers; medians of the draws; ratios are to the best peer's rate in the same form"
    yield from targets(rows)
    for regime in distinct(rows, "regime"):
        for form in distinct(rows, "form"):
            yield from table(rows, regime, form)
    yield from base64_costs(rows)
    if plotted:
        yield f"\n![Rates of all contestants]({plotted})"


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


def plot(path: Path, rows: Sequence[Row]) -> str:
    """Draw a panel for each regime; return the file's name, empty without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: there is no matplotlib; pip install -e '.[bench]'")
        return ""
    matplotlib.use("svg")
    from matplotlib.figure import Figure

    regimes, names, pictures = (distinct(rows, name) for name in ("regime", "contestant", "photo"))
    figure = Figure(figsize=(10, 4 * max(1, len(regimes))))
    panels = figure.subplots(max(1, len(regimes)), 1, squeeze=False)[:, 0]
    for panel, regime in zip(panels, regimes, strict=False):
        for place, name in enumerate(names):
            rates = [
                rate(rows, contestant=name, regime=regime, photo=photo, form="json") or 0
                for photo in pictures
            ]
            places = [index + place * 0.8 / len(names) for index in range(len(pictures))]
            panel.bar(places, rates, 0.8 / len(names), label=name)
        panel.set_xticks([index + 0.35 for index in range(len(pictures))], pictures)
        panel.set_yscale("log")
        panel.set_ylabel(f"answers a second, {regime}, JSON")
        panel.legend()
    svg = path.with_suffix(".svg")
    figure.savefig(svg, bbox_inches="tight")
    return svg.name
