"""``sm demo``: what ``make serve`` does, for an installed package: set everything up, then serve the demo."""

from __future__ import annotations

import argparse
import os
import sys

from sm.tools.build import prepare_command


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--examples", action="store_true", help="serve the examples too")
    command.add_argument(
        "--reload", action="store_true", help="development: load clients again when you edit them"
    )


def run(options: argparse.Namespace) -> int:
    """Fetch, convert and build what is missing, then become the box."""
    prepare_command.set_up(examples=options.examples)
    flags = ["--examples" if options.examples else "--demo", *(["--reload"] if options.reload else [])]
    sys.stdout.flush()
    # A new program: the set-up has loaded libraries that the supervisor must not hold for its whole life.
    os.execv(sys.executable, [sys.executable, "-m", "sm.cli", "serve", *flags])  # noqa: S606
