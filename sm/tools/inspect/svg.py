"""The picture of a repository's ensembles, as SVG: the same repository gives the same bytes."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from sm.errors import StartError
from sm.repository import ensembles, models
from sm.repository.ensembles import Edge
from sm.repository.models import Model
from sm.repository.wiring import Fault, faults
from sm.run_state import write_whole
from sm.tools.inspect.graph_layout import MARGIN, Box, Layout, width

#: Fill and edge of each kind of box.
COLOURS = {"input": ("#e7f0fd", "#4a7ebb"), "step": ("#ffffff", "#444444"), "output": ("#e6f5e8", "#4b9a5a")}
WRONG, WRONG_FILL, LINE, QUIET = "#c62828", "#fdeaea", "#777777", "#666666"
TITLE, LETTERS = 40, 100
FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"


def save(repository: Path, file: str) -> None:
    """Draw a repository's ensembles into ``file``, ``-`` for standard output; :class:`StartError` if not."""
    found = models.read(repository) if repository.is_dir() else ()
    if not any(map(ensembles.is_ensemble, found)):
        raise StartError(f"there is no ensemble in {repository} to draw.")
    if file == "-":
        sys.stdout.write(draw(found))
        return
    try:
        write_whole(Path(file), draw(found))
    except OSError as error:
        raise StartError(f"{file} cannot be written: {error.strerror}.") from None


def draw(found: Sequence[Model]) -> str:
    """All ensembles of a repository, one below the other."""
    by_name = {model.name: model for model in found}
    drawings = [Drawing(Layout.of(each), faults(each, by_name)) for each in ensembles.read(found)]
    wide = max((drawing.width for drawing in drawings), default=0.0)
    body, y = [], 0.0
    for drawing in drawings:
        body += [f'<g transform="translate(0 {y:g})">', *drawing.elements(), "</g>"]
        y += drawing.height
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{y:.0f}" '
        f'viewBox="0 0 {wide:.0f} {y:.0f}" role="img" font-family={quoteattr(FONT)} font-size="12">'
    )
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return "\n".join([head, ground, *body, "</svg>", ""])


class Drawing:
    """One ensemble: a heading, its graph, and below what is wrong with it."""

    def __init__(self, layout: Layout, wrong: Sequence[Fault]) -> None:
        self.layout = layout
        self._nodes = frozenset().union(*(fault.nodes for fault in wrong))
        self._ends = frozenset().union(*(fault.ends for fault in wrong))
        name = layout.ensemble.name
        said = dict.fromkeys(f"{name} {fault.sentence}." for fault in wrong)
        self._lines = [line for sentence in said for line in textwrap.wrap(sentence, LETTERS)]

    @property
    def heading(self) -> tuple[str, str]:
        model = self.layout.ensemble.model
        most = model.config.max_batch_size if model.config else 0
        return model.name, f"ensemble · {f'batches of up to {most}' if most else 'no batches'}"

    @property
    def width(self) -> float:
        heading = width(" ".join(self.heading)) * 1.3
        return max(self.layout.width, heading, *map(width, self._lines), 0) + 2 * MARGIN

    @property
    def height(self) -> float:
        back = 12 * len(self.layout.back)
        return TITLE + self.layout.height + back + 18 * len(self._lines) + MARGIN

    def elements(self) -> Iterator[str]:
        name, detail = self.heading
        yield text(MARGIN, 26, name, size=16, weight="bold")
        yield text(MARGIN + width(name) * 16 / 12 + MARGIN, 26, detail, colour=QUIET)
        yield f'<g transform="translate(0 {TITLE})">'
        yield from self._links()
        yield from self._back()
        for place, box in enumerate(self.layout.boxes):
            if box.node:
                yield from self._box(place, box)
                yield from self._labels(place, box)
        yield "</g>"
        below = self.height - 18 * len(self._lines) - MARGIN / 2
        for row, line in enumerate(self._lines):
            yield text(MARGIN, below + 18 * row + 8, line, colour=WRONG)

    def _links(self) -> Iterator[str]:
        for link in self.layout.links:
            source, target = self.layout.boxes[link.source], self.layout.boxes[link.target]
            begin, end = source.y + source.out(link.out), target.y + target.into(link.into)
            # A long line is drawn through the columns that it passes.
            start = source.x + source.width if source.node else source.x
            turn = self.layout.ends[source.column]
            half = (turn + target.x) / 2
            curve = f"C{half:g} {begin:g} {half:g} {end:g} {target.x:g} {end:g}"
            wrong = all(map(self._is_wrong, link.edges))
            yield line(f"M{start:g} {begin:g} H{turn:g} {curve}", wrong)
            if target.node:
                yield arrow(target.x, end, wrong)

    def _back(self) -> Iterator[str]:
        """Below all boxes, from right to left."""
        for number, edge in enumerate(self.layout.back):
            source, target = self.layout.boxes[edge.source], self.layout.boxes[edge.target]
            begin, end = source.y + source.out(edge.out), target.y + target.into(edge.into)
            start, right = source.x + source.width, self.layout.ends[source.column] + 14 + 6 * number
            left, low = target.x - 22 - 6 * number, self.layout.height + 12 * number
            yield line(f"M{start:g} {begin:g} H{right:g} V{low:g} H{left:g} V{end:g} H{target.x:g}", True)
            yield arrow(target.x, end, True)

    def _is_wrong(self, edge: Edge) -> bool:
        return bool({(edge.source, edge.tensor), (edge.target, edge.tensor)} & self._ends)

    def _box(self, place: int, box: Box) -> Iterator[str]:
        node = box.node
        assert node is not None
        wrong = place in self._nodes
        fill, edge = (WRONG_FILL, WRONG) if wrong else COLOURS.get(node.kind, COLOURS["step"])
        dashed = ' stroke-dasharray="5 4"' if node.kind == "nobody" or node.detail == "not there" else ""
        place_and_size = f'x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}"'
        stroke = f'stroke="{edge}" stroke-width="{2 if wrong else 1.2}"{dashed}'
        yield f'<rect {place_and_size} rx="6" fill="{fill}" {stroke}/>'
        middle, quiet = box.x + box.width / 2, WRONG if wrong else QUIET
        yield text(middle, box.y + 17, node.title, weight="bold", anchor="middle")
        yield text(middle, box.y + 32, node.detail, colour=quiet, anchor="middle", size=11)
        if node.kind != "step":
            return
        for row, end in enumerate(node.reads):
            yield self._port(place, end.tensor, box.x + 8, box.y + box.into(row), end.port, "start")
        for row, end in enumerate(node.writes):
            yield self._port(place, end.tensor, box.x + box.width - 8, box.y + box.out(row), end.port, "end")

    def _port(self, place: int, tensor: str, x: float, y: float, name: str, anchor: str) -> str:
        wrong = (place, tensor) in self._ends
        return text(x, y + 4, name, colour=WRONG if wrong else "#222222", anchor=anchor)

    def _labels(self, place: int, box: Box) -> Iterator[str]:
        for out, (tensor, kind) in enumerate(self.layout.label(place)):
            y, wrong = box.y + box.out(out), (place, tensor) in self._ends
            if tensor:
                yield text(box.x + box.width + MARGIN, y - 5, tensor, colour=WRONG if wrong else "#222222")
            yield text(box.x + box.width + MARGIN, y + 14, kind, colour=WRONG if wrong else QUIET, size=11)


def text(
    x: float,
    y: float,
    said: str,
    *,
    colour: str = "#111111",
    size: float = 12,
    weight: str = "normal",
    anchor: str = "start",
) -> str:
    bold = f' font-weight="{weight}"' if weight != "normal" else ""
    where = f' text-anchor="{anchor}"' if anchor != "start" else ""
    # XML has no way to write most control characters.
    shown = escape(
        "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in said)
    )
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" font-size="{size:g}"{bold}{where}>{shown}</text>'


def line(path: str, wrong: bool) -> str:
    stroke = f'stroke="{WRONG if wrong else LINE}" stroke-width="{2 if wrong else 1.2}"'
    return f'<path d="{path}" fill="none" {stroke}/>'


def arrow(x: float, y: float, wrong: bool) -> str:
    return f'<path d="M{x:g} {y:g} l-8 -4 v8 z" fill="{WRONG if wrong else LINE}"/>'
