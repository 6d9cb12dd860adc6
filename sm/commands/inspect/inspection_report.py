"""Describe a repository's content, for people and for programs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from sm.repository import models, problems
from sm.repository.manifest import NAME, Manifest
from sm.repository.models import Model
from sm.repository.problems import Problem
from sm.settings import Settings

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
    chosen = _chosen_engine(model, number) if manifest.target == "cpu" else ""
    warning = ", with warnings" if manifest.warnings else ""
    return f"{manifest.target}, {manifest.tool.name} {manifest.tool.version}, {graph}{gpu}{chosen}{warning}"


def _chosen_engine(model: Model, number: int) -> str:
    """Return the engine that starts on this machine take; empty if none has chosen yet."""
    from google.protobuf.json_format import MessageToDict

    from sm.triton.onnx_cpu.engines import KEPT, Chooser, Wanted  # imports NumPy, which PID 1 must not load

    config = MessageToDict(model.config, preserving_proto_field_name=True) if model.config else {}
    cache = Settings.read(os.environ).cache.expanduser() / KEPT
    choice = Chooser(model.version(number), 1, Wanted.read(config, os.environ), cache).cached()
    return f", here {choice.candidate}" if choice else ""


def _sizes(folder: Path) -> Iterator[int]:
    return (path.stat().st_size for path in folder.rglob("*") if path.is_file())
