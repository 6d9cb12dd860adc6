"""What ``sm cost`` takes."""

from __future__ import annotations

import argparse
from pathlib import Path


def take(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--plan", type=Path, metavar="FILE", help="models, instances and hours, in JSON (an example's)"
    )
    command.add_argument(
        "--region",
        action="append",
        metavar="REGION",
        help="instead of the plan's; may be given several times",
    )
    command.add_argument("--live", action="store_true", help="today's prices, from AWS's price list")
    command.add_argument("--profile", metavar="PROFILE", help="with --live: of the AWS configuration")
