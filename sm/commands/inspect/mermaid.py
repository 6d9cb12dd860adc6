"""Write a repository's ensembles as a Mermaid flowchart. GitHub and most Markdown viewers draw it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from sm.errors import CommandError
from sm.repository import ensembles, models
from sm.repository.ensembles import Edge, Ensemble, Fault, Node, faults
from sm.repository.models import Model
from sm.run_state import write_atomically

#: The style of each kind of node. ``nobody``: the writer of a tensor that no step writes.
STYLES = {
    "input": "fill:#e7f0fd,stroke:#4a7ebb,color:#111111",
    "step": "fill:#ffffff,stroke:#444444,color:#111111",
    "output": "fill:#e6f5e8,stroke:#4b9a5a,color:#111111",
    "nobody": "fill:#ffffff,stroke:#c62828,color:#111111,stroke-dasharray:5 4",
    "wrong": "fill:#fdeaea,stroke:#c62828,color:#c62828",
}
WRONG_LINK = "stroke:#c62828,color:#c62828"
#: Characters with a meaning inside a quoted label of Mermaid: they are written by number.
SPECIAL_CHARACTERS = re.compile(r"""["#$%&:;<>\\`{|}]""")


def save(repository: Path, file: str) -> None:
    """Write the flowchart of a repository's ensembles.

    Args:
        repository: the model repository.
        file: where to; ``-`` is standard output.

    Raises:
        CommandError: there is no ensemble, or the file cannot be written.
    """
    repository_models = models.read(repository) if repository.is_dir() else ()
    if not any(map(ensembles.is_ensemble, repository_models)):
        raise CommandError(f"there is no ensemble in {repository} to draw.")
    if file == "-":
        sys.stdout.write(flowchart(repository_models))
        return
    if file.endswith(".svg"):
        raise CommandError(
            f"{file}: the graph is Mermaid text, not SVG. Name it {file.removesuffix('.svg')}.mmd, or paste "
            "it into a ```mermaid block of a Markdown page."
        )
    try:
        write_atomically(Path(file), flowchart(repository_models))
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}.") from None


def flowchart(repository_models: Sequence[Model]) -> str:
    """Return a flowchart with a subgraph for each ensemble; faults are red."""
    by_name = {model.name: model for model in repository_models}
    lines, links = ["flowchart LR"], list[bool]()
    for number, ensemble in enumerate(ensembles.read(repository_models)):
        part = EnsembleGraph(f"e{number}", ensemble, faults(ensemble, by_name))
        lines += part.lines()
        links += part.wrong_links
    lines += [f"    classDef {name} {style}" for name, style in STYLES.items()]
    if any(links):
        wrong_links = ",".join(str(place) for place, is_wrong in enumerate(links) if is_wrong)
        lines.append(f"    linkStyle {wrong_links} {WRONG_LINK}")
    return "\n".join([*lines, ""])


class EnsembleGraph:
    """One ensemble: its nodes, the tensors between them, and a node with the sentences of its faults.

    Args:
        prefix: what the ids of its nodes begin with.
        ensemble: the ensemble.
        found_faults: its faults.
    """

    def __init__(self, prefix: str, ensemble: Ensemble, found_faults: Sequence[Fault]) -> None:
        self._prefix = prefix
        self._ensemble = ensemble
        self._sentences = list(dict.fromkeys(f"{ensemble.name} {fault.sentence}." for fault in found_faults))
        self._edges = list(ensemble.edges())
        self._wrong_ends = frozenset[tuple[int, str]]().union(*(fault.ends for fault in found_faults))
        edge_ends = {end for edge in self._edges for end in _edge_ends(edge)}
        without_edge = {place for place, tensor in self._wrong_ends - edge_ends}
        self._wrong_nodes = frozenset(without_edge).union(*(fault.nodes for fault in found_faults))
        #: For each link, in the order of :meth:`lines`: whether something is wrong with it.
        self.wrong_links = [not self._wrong_ends.isdisjoint(_edge_ends(edge)) for edge in self._edges]

    def lines(self) -> Iterator[str]:
        config = self._ensemble.model.config
        max_batch = config.max_batch_size if config else 0
        batches = f"batches of up to {max_batch}" if max_batch else "no batches"
        yield f"    subgraph {self._prefix}[{_label(f'{self._ensemble.name} · ensemble · {batches}')}]"
        yield "        direction LR"
        for place, node in enumerate(self._ensemble.nodes):
            yield f"        {self._id(place)}{self._box(place, node)}"
        for edge in self._edges:
            yield f"        {self._id(edge.source)} -->|{self._text(edge)}| {self._id(edge.target)}"
        if self._sentences:
            yield f"        {self._prefix}faults[{_label(*self._sentences)}]:::wrong"
        yield "    end"

    def _id(self, place: int) -> str:
        return f"{self._prefix}n{place}"

    def _box(self, place: int, node: Node) -> str:
        style = "wrong" if place in self._wrong_nodes and node.kind != "nobody" else node.kind
        label = _label(*filter(None, (node.title, node.detail)))
        return f"[{label}]:::{style}" if node.kind == "step" else f"([{label}]):::{style}"

    def _text(self, edge: Edge) -> str:
        """Label an edge: the tensor, its type and shape, and the models' own names if they differ."""
        writer = self._ensemble.nodes[edge.source].writes[edge.out]
        reader = self._ensemble.nodes[edge.target].reads[edge.into]
        kind = writer.kind or reader.kind
        ports = {writer.port, reader.port} != {edge.tensor}
        names = f"{writer.port} → {reader.port}" if ports else ""
        return _label(*filter(None, (edge.tensor, str(kind or ""), names)))


def _edge_ends(edge: Edge) -> set[tuple[int, str]]:
    return {(edge.source, edge.tensor), (edge.target, edge.tensor)}


def _label(*lines: str) -> str:
    """Return a quoted label with all special characters escaped."""
    printable = (
        "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line) for line in lines
    )
    return (
        '"'
        + "<br>".join(SPECIAL_CHARACTERS.sub(lambda c: f"#{ord(c[0])};", line) for line in printable)
        + '"'
    )
