"""Arguments of new-client, and its output."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from sm.settings import Settings

KINDS = ("image", "text", "audio", "bytes", "tensor", "pipeline")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add its options."""
    command.add_argument("name", metavar="NAME", help="the modelname: small letters, digits and _")
    command.add_argument(
        "--kind",
        choices=KINDS,
        help="what the client takes (default: what model/NAME takes; image if there is no model)",
    )
    command.add_argument(
        "--into",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="the folder for clients/NAME and model/NAME (default: here)",
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
