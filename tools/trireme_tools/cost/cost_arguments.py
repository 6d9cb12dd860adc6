"""Arguments of ``sm cost``."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--plan", type=Path, metavar="FILE", help="a JSON file with models, instances and hours (an example)"
    )
    command.add_argument(
        "--region",
        action="append",
        metavar="REGION",
        help="use this Region instead of the plan's; repeatable",
    )
    command.add_argument("--live", action="store_true", help="use today's prices from AWS's price list")
    command.add_argument("--profile", metavar="PROFILE", help="with --live: the AWS profile")
    command.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the costs")
