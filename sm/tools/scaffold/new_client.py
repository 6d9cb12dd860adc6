"""Arguments of new-client, and its output."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

KINDS = ("image", "text", "audio", "bytes", "tensor", "pipeline")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add its options."""
    command.add_argument("name", metavar="NAME", help="the modelname: small letters, digits and _")
    command.add_argument(
        "--kind", choices=KINDS, default="image", help="what the client takes (default: image)"
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
    from sm.tools.scaffold.writing import NewClient

    for path in NewClient(options.name, options.kind).write(options.into):
        sys.stdout.write(f"wrote {path}\n")
    sys.stdout.write(f"next: sm check-client {options.name}{_where(options.into)}\n")
    return 0


def _where(into: Path) -> str:
    return "" if into.resolve() == Path.cwd() else f" (in {into})"
