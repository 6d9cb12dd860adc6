"""Arguments of new-client, new-model and eject, and the output of new-client."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from sm.settings import Settings
from trireme_extensions.tasks.task_table import TASKS


def add_model_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of new-model."""
    add_eject_arguments(command)
    command.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="FILE.onnx|FOLDER|hf://OWNER/NAME",
        help="an ONNX file, or a folder or repository of Hugging Face's form",
    )
    command.add_argument("--task", choices=TASKS, help="what the model does (default: its config.json)")
    command.add_argument("--labels", type=Path, metavar="FILE", help="one label a line, in the model's order")
    command.add_argument(
        "--preprocess", type=Path, metavar="FILE", help="how a picture becomes the input, as preprocess.json"
    )


def add_eject_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of eject."""
    command.add_argument("name", metavar="NAME", help="the modelname: small letters, digits and _")
    command.add_argument(
        "--into",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="the folder of clients/NAME and model/NAME (default: here)",
    )


KINDS = ("image", "text", "audio", "bytes", "tensor", "pipeline")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of new-client."""
    add_eject_arguments(command)
    command.add_argument(
        "--kind",
        choices=KINDS,
        help="what the client takes (default: what model/NAME takes; image if there is no model)",
    )


def run(options: argparse.Namespace) -> int:
    """Write the files, and print the next steps."""
    from trireme_tools.scaffold.real_model import find_repository
    from trireme_tools.scaffold.writing import NewClient

    repository = find_repository(options.name, options.into, Settings.read(os.environ))
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that Triton is stopped too
    try:
        lines = NewClient(options.name, options.kind, repository).write(options.into)
    finally:
        signal.signal(signal.SIGTERM, before)
    for line in (*lines, f"next: sm check-client {options.name}{_where(options.into)}"):
        sys.stdout.write(f"{line}\n")
    return 0


def _where(into: Path) -> str:
    return "" if into.resolve() == Path.cwd() else f" (in {into})"
