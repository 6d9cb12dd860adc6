"""``sm inspect --graph``: the ensembles of a repository as a flowchart for Mermaid."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from sm.errors import CommandError
from sm.repository import ensembles, models
from sm.repository.ensembles import Ensemble, faults
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
    """Return a flowchart with a subgraph for each ensemble; its faults are in a red node."""
    by_name = {model.name: model for model in repository_models}
    lines = ["flowchart LR"]
    for number, ensemble in enumerate(ensembles.read(repository_models)):
        sentences = [f"{ensemble.name} {fault}." for fault in faults(ensemble, by_name)]
        lines += _subgraph(f"e{number}", ensemble, list(dict.fromkeys(sentences)))
    lines += [f"    classDef {name} {style}" for name, style in STYLES.items()]
    return "\n".join([*lines, ""])


def _subgraph(prefix: str, ensemble: Ensemble, sentences: Sequence[str]) -> Iterator[str]:
    """Yield the lines of one ensemble. The ids of its nodes begin with ``prefix``."""
    max_batch = ensemble.model.config.max_batch_size if ensemble.model.config else 0
    batches = f"batches of up to {max_batch}" if max_batch else "no batches"
    yield f"    subgraph {prefix}[{_label(f'{ensemble.name} · ensemble · {batches}')}]"
    yield "        direction LR"
    for place, (node, detail) in enumerate(zip(ensemble.nodes, _details(ensemble), strict=True)):
        label = _label(node.title, detail)
        box = f"[{label}]" if node.kind == "step" else f"([{label}])"
        yield f"        {prefix}n{place}{box}:::{node.kind}"
    for source, out, target, into in ensemble.edges():
        # The tensor, its type and shape, and the models' own names if they differ.
        names = f"{out.port} → {into.port}" if {out.port, into.port} != {out.tensor} else ""
        text = _label(*filter(None, (out.tensor, str(out.kind or into.kind or ""), names)))
        yield f"        {prefix}n{source} -->|{text}| {prefix}n{target}"
    if sentences:
        yield f"        {prefix}faults[{_label(*sentences)}]:::wrong"
    yield "    end"


def _details(ensemble: Ensemble) -> Iterator[str]:
    """Yield the second line of each node: of a step the version and the backend of its model."""
    steps = iter(ensemble.model.config.ensemble_scheduling.step if ensemble.model.config else ())
    for node in ensemble.nodes:
        if node.kind != "step":
            yield "given by nobody" if node.kind == "nobody" else node.kind
            continue
        step, model = next(steps), node.model
        if model is None:
            yield "not there"
            continue
        version = step.model_version if step.model_version > 0 else max(model.served, default=None)
        number = f"version {version}" if version is not None else "no version"
        yield f"{number} · {model.backend or '?'}"


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
