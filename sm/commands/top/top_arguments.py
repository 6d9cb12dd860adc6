"""The arguments of ``sm top``."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--url", help="the box, such as http://localhost:8080; without it the one on this machine"
    )
    command.add_argument("--api-key", type=Path, metavar="FILE", help="a file with the box's API key")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--once", action="store_true", help="print the tables once, and end")
    form.add_argument(
        "--json", action="store_true", help="print the numbers of the last minute once, as JSON, and end"
    )
