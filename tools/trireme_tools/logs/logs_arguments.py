"""Arguments of ``sm logs``. Importing it loads no boto3."""

from __future__ import annotations

import argparse
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

from trireme_tools.deploy.deploy_arguments import add_account_arguments, whole_number

AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
STATUS = re.compile(r"[1-5](xx|\d\d)")


def add_logs_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", nargs="?", help="the endpoint's name")
    command.add_argument("-f", "--follow", action="store_true", help="keep showing new lines")
    command.add_argument(
        "-n",
        "--lines",
        type=whole_number("lines", 1, 10_000_000),
        metavar="N",
        help="show the last N lines (100; with a filter all)",
    )
    add_account_arguments(command)
    local = command.add_argument_group("the log of a box on this machine")
    local.add_argument("--local", action="store_true", help="read it instead of an endpoint's")
    local.add_argument(
        "--file",
        metavar="FILE",
        help="read this file, or - for standard input (the newest log of a box here)",
    )
    local.add_argument("--model", metavar="M", help="requests for this model")
    local.add_argument(
        "--status", type=status_prefix, metavar="S", help="requests with this status, or class: 429, 4xx, 5xx"
    )
    local.add_argument("--code", metavar="C", help="requests with this error code, such as overloaded")
    local.add_argument("--request-id", metavar="ID", help="every line of this request")
    local.add_argument(
        "--slower", type=float, metavar="MS", help="requests that took at least so many milliseconds"
    )
    local.add_argument(
        "--since",
        type=time_or_age,
        metavar="T",
        help="lines from then on: an age (90s, 30m, 2h, 1d), 'yesterday', or a date and time in ISO 8601",
    )
    local.add_argument("--json", action="store_true", help="print the lines as they are in the log")


def log_file(text: str) -> Path | None:
    """Return the file of ``--file``; None for standard input."""
    return None if text == "-" else Path(text)


def status_prefix(text: str) -> str:
    """Return a status such as ``429``, or the first digit of a class such as ``4xx``."""
    lower = text.lower()
    if not STATUS.fullmatch(lower):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a status such as 429 nor a class such as 4xx")
    return lower.removesuffix("xx")


def time_or_age(text: str) -> datetime:
    """Return the time that an age or a date names; local time if it has no zone."""
    if match := AGE.fullmatch(text):
        return datetime.now(timezone.utc) - timedelta(**{UNITS[match[2]]: float(match[1])})
    if text == "yesterday":
        today = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
        return today - timedelta(days=1)
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone()
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither an age such as 2h, nor 'yesterday', nor a time such as 2026-11-22T18:00"
        ) from None
