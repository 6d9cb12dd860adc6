"""The arguments of ``sm inspect``."""

from __future__ import annotations

import argparse
from pathlib import Path


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
