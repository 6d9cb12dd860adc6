"""``sm demo``: set up the demo's models, and with ``--examples`` the examples, then serve them."""

from __future__ import annotations

import argparse
import os
import sys

from trireme_tools.prepare.prepare_command import set_up


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--examples", action="store_true", help="serve the demo's models and the examples")
    command.add_argument(
        "--reload", action="store_true", help="development: load clients again when you edit them"
    )
    command.set_defaults(source=None)


def run(options: argparse.Namespace) -> int:
    """Set up what is missing, and become the box. ``sm serve --demo`` calls it too, with a source."""
    set_up(examples=options.examples)
    sys.stdout.flush()
    flags = [f"--{flag}" for flag in ("examples", "reload") if getattr(options, flag)]
    flags += [options.source] if options.source else []
    # A new program: the set-up has loaded libraries that the supervisor must not hold for its whole life.
    os.execv(sys.executable, [sys.executable, "-m", "sm.server.supervisor.start", "--demo", *flags])  # noqa: S606
