"""``sm logs``: show a log, filtered."""

from __future__ import annotations

import argparse
import os
import re
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

from sm.commands import local_boxes
from sm.commands.progress import Progress
from sm.errors import CommandError
from sm.settings import Settings
from trireme_tools.deploy.deploy_arguments import add_account_arguments, whole_number
from trireme_tools.logs import local_logs

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


def show_logs(options: argparse.Namespace) -> int:
    """Show an endpoint's log, or with ``--local`` that of a box here; 1 if no line is shown."""
    if options.local:
        return _show_local(options)
    if not options.name:
        raise CommandError("name the endpoint, or read the log of a box on this machine with --local.")
    filters = ("file", "model", "status", "code", "request_id", "slower", "since", "json")
    if given := [name for name in filters if getattr(options, name)]:
        raise CommandError(
            f"--{given[0].replace('_', '-')} works with --local; of an endpoint's log: "
            f"'sm logs {options.name} -n 1000 | sm logs --local --file - …'."
        )
    # boto3 is imported for an endpoint only.
    from trireme_tools.deploy import deploy_commands

    options.lines = min(options.lines or 100, 10_000)
    return deploy_commands.show_logs(options)


def _show_local(options: argparse.Namespace) -> int:
    if options.name:
        raise CommandError("--local shows the log of a box on this machine, which has no name.")
    criteria = local_logs.Filter(
        options.model or "",
        options.status or "",
        options.code or "",
        options.request_id or "",
        options.slower,
        options.since,
    )
    if options.file == "-":
        lines, source = iter(sys.stdin), "standard input"
    else:
        file = log_file(options.file) if options.file else None
        file = file or local_logs.find(Settings.read(os.environ))
        lines, source = local_logs.read(file, options.follow), str(file)
        boxes = local_boxes.running()
        found = next((box for box in boxes if box.writes(file)), None)
        Progress(sys.stderr).say(f"the log is {source}{local_boxes.name_others(found, boxes, '--file')}")
    last = options.lines
    if last is None and criteria.is_empty and not options.follow:
        last = local_logs.DEFAULT_LINES
    if options.follow:
        last = None
    results = Progress(sys.stdout)
    if local_logs.show(lines, criteria, results.say, last=last, raw=options.json):
        return 0
    Progress(sys.stderr).say(f"no line in {source} matches")
    return 1
