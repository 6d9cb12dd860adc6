"""``sm inspect``: the contents of a model repository, and its problems; the tools draw its graph."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from sm.commands import part_of_tools
from sm.repository import model_makers, models, problems
from sm.repository.manifest import NAME, Manifest
from sm.repository.models import Model
from sm.repository.problems import Problem

COLUMNS = ("model", "backend", "versions", "inputs", "outputs", "batching", "MB", "manifest")


def report(repository: Path, problem_list: Sequence[Problem] | None = None) -> dict[str, Any]:
    """Return ``repository``, ``models`` (one object each), ``problems`` and ``warnings`` (sentences).

    ``problem_list``: the problems, if they are known already.
    """
    rows = models.read(repository) if repository.is_dir() else ()
    problem_list = problems.find(repository) if problem_list is None else problem_list
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
    from google.protobuf.json_format import MessageToDict

    config = MessageToDict(model.config, preserving_proto_field_name=True) if model.config else {}
    said = (maker.describe(model.version(number), manifest, config) for maker in model_makers.rows())
    return ", ".join([manifest.target, *filter(None, said)])


def _sizes(folder: Path) -> Iterator[int]:
    return (path.stat().st_size for path in folder.rglob("*") if path.is_file())


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
    problem_list = problems.find(options.repository)
    if options.client_check:
        from sm.commands import client_loading  # NumPy, which the rest of the command does not need

        problem_list += client_loading.find_problems(options.repository)
    contents = report(options.repository, problem_list)
    if options.json:
        sys.stdout.write(json.dumps(contents, indent=2) + "\n")
        return int(bool(contents["problems"]))
    if options.graph:
        part_of_tools("flowchart", "--graph").save(options.repository, options.graph)
    elif contents["models"]:
        sys.stdout.writelines(f"{line}\n" for line in table(contents["models"]))
    for sentence in contents["warnings"]:
        sys.stderr.write(f"warning: {sentence}\n")
    for sentence in contents["problems"]:
        sys.stderr.write(f"problem: {sentence}\n")
    return int(bool(contents["problems"]))
