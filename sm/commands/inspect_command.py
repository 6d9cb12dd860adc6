"""``sm inspect``: the contents of a model repository, its problems, and its graph for Mermaid."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from sm.errors import CommandError
from sm.repository import ensembles, model_makers, models, problems
from sm.repository.ensembles import Ensemble, faults
from sm.repository.manifest import NAME, Manifest
from sm.repository.models import Model
from sm.repository.problems import Problem
from sm.run_state import write_atomically

COLUMNS = ("model", "backend", "versions", "inputs", "outputs", "batching", "MB", "manifest")


def report(repository: Path, problem_list: Sequence[Problem] | None = None) -> dict[str, Any]:
    """Return ``repository``, ``models`` (one object each), ``problems`` and ``warnings`` (sentences).

    ``problem_list``: the problems, if they are known already.
    """
    rows = models.read(repository) if repository.is_dir() else ()
    problem_list = problems.find_all(repository) if problem_list is None else problem_list
    return {
        "repository": str(repository),
        "models": [_row(model) for model in rows],
        "problems": [problem.sentence for problem in problem_list if problem.is_certain],
        "warnings": [problem.sentence for problem in problem_list if not problem.is_certain],
    }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield lines for people: one per tensor, with columns as wide as their content."""
    cells = [[_lines(row[column.lower()]) for column in COLUMNS] for row in rows]
    split = [list(zip_longest(*row, fillvalue="")) for row in cells]
    lines = [COLUMNS, *(line for row in split for line in row)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _row(model: Model) -> dict[str, Any]:
    config = model.config
    return {
        "model": model.name,
        "backend": model.backend or "?",
        "versions": [str(number) for number in model.versions],
        "inputs": [_tensor(tensor) for tensor in config.input] if config else [],
        "outputs": [_tensor(tensor) for tensor in config.output] if config else [],
        "batching": _batching(config) if config else "?",
        "mb": round(sum(_sizes(model.folder)) / 1e6, 1),
        "manifest": [_state(model, number) for number in model.served if number in model.versions],
    }


def _lines(value: Any) -> list[str]:
    return (value if isinstance(value, list) else [str(value)]) or ["-"]


def _tensor(tensor: Any) -> str:
    datatype = models.protobuf().DataType.Name(tensor.data_type).removeprefix("TYPE_")
    return f"{tensor.name} {datatype} {list(tensor.dims)}"


def _batching(config: Any) -> str:
    if not config.max_batch_size:
        return "none"
    kind = config.WhichOneof("scheduling_choice") or "as it comes"
    preferred = list(config.dynamic_batching.preferred_batch_size)
    wish = f", best {', '.join(map(str, preferred))}" if preferred else ""
    return f"{kind.removesuffix('_batching')}, up to {config.max_batch_size}{wish}"


def _state(model: Model, number: int) -> str:
    try:
        manifest = Manifest.read(model.version(number))
    except ValueError:
        return f"{NAME} cannot be read"
    if manifest is None:
        return "none"
    gpu = f", compute capability {manifest.gpu.compute_capability}" if manifest.gpu else ""
    graph = ", ".join((manifest.precision, *manifest.changes))
    warning = ", with warnings" if manifest.warnings else ""
    cost = f", {manifest.quantized}" if manifest.quantized else ""
    said = f"{gpu}{cost}{_described(model, number, manifest)}{warning}"
    return f"{manifest.target}, {manifest.tool.name} {manifest.tool.version}, {graph}{said}"


def _described(model: Model, number: int, manifest: Manifest) -> str:
    """Return what the makers of models say of a version, such as the engine that runs it here."""
    from google.protobuf.json_format import MessageToDict

    config = MessageToDict(model.config, preserving_proto_field_name=True) if model.config else {}
    said = (maker.describe(model.version(number), manifest, config) for maker in model_makers.rows())
    return "".join(f", {words}" for words in said if words)


def _sizes(folder: Path) -> Iterator[int]:
    return (path.stat().st_size for path in folder.rglob("*") if path.is_file())


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
    for place, node in enumerate(ensemble.nodes):
        label = _label(*filter(None, (node.title, node.detail)))
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


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("repository", type=Path, metavar="REPO", help="Triton's model repository")
    command.add_argument(
        "--no-client-check",
        action="store_false",
        dest="client_check",
        help="do not load the clients of code/, such as those of a repository that you do not trust",
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON, for programs")
    form.add_argument(
        "--graph",
        nargs="?",
        const="-",
        metavar="FILE.mmd",
        help="write the ensembles as a Mermaid flowchart (to standard output)",
    )


def run(options: argparse.Namespace) -> int:
    """Show what a model repository holds, and every problem that a start would meet."""
    problem_list = problems.find_all(options.repository)
    if options.client_check:
        from sm.commands import client_loading  # NumPy, which the rest of the command does not need

        problem_list += client_loading.find_problems(options.repository)
    contents = report(options.repository, problem_list)
    if options.json:
        sys.stdout.write(json.dumps(contents, indent=2) + "\n")
        return int(bool(contents["problems"]))
    if options.graph:
        save(options.repository, options.graph)
    elif contents["models"]:
        sys.stdout.writelines(f"{line}\n" for line in table(contents["models"]))
    for sentence in contents["warnings"]:
        sys.stderr.write(f"warning: {sentence}\n")
    for sentence in contents["problems"]:
        sys.stderr.write(f"problem: {sentence}\n")
    return int(bool(contents["problems"]))
