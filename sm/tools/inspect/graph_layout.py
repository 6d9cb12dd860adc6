"""Where the boxes and lines of an ensemble's picture go: columns from left to right, no line through a box.

As Sugiyama has it: circles are cut, each node gets the column after its givers', a line that passes a
column has a place of its own there, columns are ordered by their neighbours, and then moved towards them.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from itertools import pairwise

from sm.repository.ensembles import Edge, Ensemble, Node
from sm.repository.wiring import reached

#: Pixels: a letter of the 12 pixel monospaced font; a row of inputs or outputs; a box's head and its margins;
#: room between boxes of a column; room for a line to turn.
LETTER, IN_ROW, OUT_ROW, HEAD, MARGIN, GAP, TURN = 7.25, 22, 36, 44, 12, 26, 56
#: Times that columns are ordered, and moved, by their neighbours.
SWEEPS = 12


@dataclass
class Box:
    """A node, or a line's place in a column (``node`` is None). ``x`` and ``y`` are its upper left corner."""

    column: int
    node: Node | None
    width: float = 0
    height: float = 0
    x: float = 0
    y: float = 0

    def into(self, place: int) -> float:
        """Where an input is, from the upper edge."""
        first = HEAD + OUT_ROW / 2  # that a line from the first output to the first input may be straight
        return first + IN_ROW * place if self.node and self.node.kind == "step" else self.height / 2

    def out(self, place: int) -> float:
        """Where an output is, from the upper edge."""
        return HEAD + OUT_ROW * (place + 0.5) if self.node and self.node.kind == "step" else self.height / 2


@dataclass(frozen=True)
class Link:
    """A line from a box to one in the next column, both by their places. ``edges``: what it is part of."""

    source: int
    out: int
    target: int
    into: int
    edges: list[Edge] = field(default_factory=list)


@dataclass
class Layout:
    """``columns`` has the places of boxes from top to bottom; the first boxes are the ensemble's nodes."""

    ensemble: Ensemble
    boxes: list[Box] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    #: Edges against the direction: they close a circle.
    back: list[Edge] = field(default_factory=list)
    columns: list[list[int]] = field(default_factory=list)
    #: Where each column's labels end and its lines begin to turn.
    ends: list[float] = field(default_factory=list)
    width: float = 0
    height: float = 0

    @classmethod
    def of(cls, ensemble: Ensemble) -> Layout:
        layout = cls(ensemble)
        edges = list(ensemble.edges())
        layout.back = _back(edges)
        forward = [edge for edge in edges if edge not in layout.back]
        columns = _columns(ensemble, forward)
        layout.boxes = [_box(node, columns[place]) for place, node in enumerate(ensemble.nodes)]
        layout._connect(forward)
        layout._order()
        layout._across()
        layout._down()
        return layout

    def label(self, place: int) -> list[tuple[str, str]]:
        """What is written at each output of a box: the tensor's name, its type and shape."""
        node = self.boxes[place].node
        if node is None or node.kind == "nobody":
            return []
        # An input's box has its name already.
        return [("" if node.kind == "input" else end.tensor, str(end.kind or "")) for end in node.writes]

    def label_width(self, column: int) -> float:
        """The widest of a column."""
        texts = (text for place in self.columns[column] for pair in self.label(place) for text in pair)
        return max((width(text) + 2 * MARGIN for text in texts), default=0)

    def _connect(self, edges: list[Edge]) -> None:
        """Links, and the places of long lines; lines of one tensor go together as far as they can."""
        known: dict[tuple[int, int, int], int] = {}
        for edge in edges:
            source, out = edge.source, edge.out
            for column in range(self.boxes[edge.source].column + 1, self.boxes[edge.target].column):
                key = (edge.source, edge.out, column)
                if key not in known:
                    known[key] = len(self.boxes)
                    self.boxes.append(Box(column, None, height=10))
                self._link(source, out, known[key], 0, edge)
                source, out = known[key], 0
            self._link(source, out, edge.target, edge.into, edge)

    def _link(self, source: int, out: int, target: int, into: int, edge: Edge) -> None:
        for link in self.links:
            if (link.source, link.out, link.target, link.into) == (source, out, target, into):
                link.edges.append(edge)
                return
        self.links.append(Link(source, out, target, into, [edge]))

    def _order(self) -> None:
        count = 1 + max((box.column for box in self.boxes), default=-1)
        self.columns = [
            [place for place, box in enumerate(self.boxes) if box.column == column] for column in range(count)
        ]
        for sweep in range(SWEEPS):
            rank = {place: index for column in self.columns for index, place in enumerate(column)}
            for column in self.columns if sweep % 2 == 0 else reversed(self.columns):
                wish = {place: self._mean_rank(place, rank, sweep % 2 == 0) for place in column}
                column.sort(key=lambda place: (wish[place], rank[place]))
                rank.update({place: index for index, place in enumerate(column)})

    def _mean_rank(self, place: int, rank: dict[int, int], forward: bool) -> float:
        """The mean place of its givers (or takers), each by which of its outputs (or inputs) it is."""
        near = [
            rank[link.source] + link.out / 100 if forward else rank[link.target] + link.into / 100
            for link in self.links
            if (link.target if forward else link.source) == place
        ]
        return sum(near) / len(near) if near else float(rank[place])

    def _across(self) -> None:
        """A column, its labels, and room to turn; where a line passes, it passes all of the column."""
        x = float(MARGIN)
        for index, column in enumerate(self.columns):
            widest = max((self.boxes[place].width for place in column), default=0)
            for place in column:
                box = self.boxes[place]
                box.x, box.width = x, box.width if box.node else widest
            self.ends.append(x + widest + self.label_width(index))
            x = self.ends[-1] + TURN
        self.width = x - (0 if self.back else TURN) + MARGIN

    def _down(self) -> None:
        for column in self.columns:
            self._stack(column, dict.fromkeys(column, 0.0))
        for sweep in range(SWEEPS):
            for column in self.columns if sweep % 2 == 0 else reversed(self.columns):
                self._stack(column, {place: self._wish(place) for place in column})
        top = min((box.y for box in self.boxes), default=0)
        for box in self.boxes:
            box.y += MARGIN - top
        self.height = max((box.y + box.height for box in self.boxes), default=0) + MARGIN

    def _wish(self, place: int) -> float:
        """Where its lines would be straight."""
        box = self.boxes[place]
        near = [
            self.boxes[link.source].y + self.boxes[link.source].out(link.out) - box.into(link.into)
            for link in self.links
            if link.target == place
        ] + [
            self.boxes[link.target].y + self.boxes[link.target].into(link.into) - box.out(link.out)
            for link in self.links
            if link.source == place
        ]
        return sum(near) / len(near) if near else box.y

    def _stack(self, column: list[int], wish: dict[int, float]) -> None:
        """As near to the wishes as the order allows: the mean of pushing down and of pushing up."""
        down, up = dict(wish), dict(wish)
        for above, below in pairwise(column):
            down[below] = max(down[below], down[above] + self.boxes[above].height + GAP)
        for above, below in reversed(list(pairwise(column))):
            up[above] = min(up[above], up[below] - self.boxes[above].height - GAP)
        for place in column:
            self.boxes[place].y = round((down[place] + up[place]) / 2)


def width(text: str) -> float:
    """Of a text in the monospaced font; what is written wide takes two places."""
    return LETTER * sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _box(node: Node, column: int) -> Box:
    texts = max(width(node.title), width(node.detail))
    if node.kind != "step":
        return Box(column, node, texts + 2 * MARGIN, 40)
    rows = [width(end.port) for end in node.reads], [width(end.port) for end in node.writes]
    ports = sum(max(row, default=0) for row in rows) + 2 * MARGIN
    taken = OUT_ROW - IN_ROW + IN_ROW * len(node.reads)
    height = HEAD + max(taken, OUT_ROW * len(node.writes)) + 4
    return Box(column, node, max(texts, ports) + 2 * MARGIN, height)


def _back(edges: list[Edge]) -> list[Edge]:
    """Edges that close a circle, in the order of the file."""
    ways: dict[int, set[int]] = {}
    found = []
    for edge in edges:
        if edge.source == edge.target or edge.source in reached(ways, edge.target):
            found.append(edge)
        else:
            ways.setdefault(edge.source, set()).add(edge.target)
    return found


def _columns(ensemble: Ensemble, edges: list[Edge]) -> list[int]:
    """Inputs in the first column, outputs in the last, all others after what they wait for."""
    kinds = [node.kind for node in ensemble.nodes]
    columns = [int(kind == "step") for kind in kinds]
    for _ in kinds:
        for edge in edges:
            columns[edge.target] = max(columns[edge.target], columns[edge.source] + 1)
    last = 1 + max((columns[i] for i, kind in enumerate(kinds) if kind != "output"), default=0)
    columns = [last if kind == "output" else columns[i] for i, kind in enumerate(kinds)]
    for place, kind in enumerate(kinds):
        if kind == "nobody":
            columns[place] = min((columns[e.target] for e in edges if e.source == place), default=1) - 1
    return columns
