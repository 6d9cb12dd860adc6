"""What new-client takes, and what it says when it has written."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

KINDS = ("image", "text", "tensor", "pipeline")


def options(command: argparse.ArgumentParser) -> None:
    """Add its options."""
    command.add_argument("name", metavar="NAME", help="the modelname: small letters, digits and _")
    command.add_argument("--kind", choices=KINDS, default="image", help="what it takes (default: image)")
    command.add_argument(
        "--into",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="where clients/NAME and model/NAME are written (default: here)",
    )


def run(asked: argparse.Namespace) -> int:
    """Write them, and say what comes next."""
    from sm.tools.scaffold.writing import NewClient

    for path in NewClient(asked.name, asked.kind).write(asked.into):
        sys.stdout.write(f"wrote {path}\n")
    sys.stdout.write(f"next: sm check-client {asked.name}{_where(asked.into)}\n")
    return 0


def _where(into: Path) -> str:
    return "" if into.resolve() == Path.cwd() else f" (in {into})"
