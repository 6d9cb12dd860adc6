"""``sm logs``: the log of an endpoint, or of a box on this machine, filtered."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from sm.errors import CommandError
from sm.server import logs
from sm.settings import Settings
from trireme_tools import local_boxes
from trireme_tools.arguments import whole_number
from trireme_tools.deploy import project_file
from trireme_tools.deploy.deploy_arguments import add_account_arguments, project_options
from trireme_tools.progress import Progress

#: Lines that are shown without a filter.
DEFAULT_LINES = 100
#: The end of the name of the older half of a log.
OLDER = ".1"
NO_LOG = (
    "there is no log of a box on this machine. Send its output to a file (> FILE), or name its log: "
    "'sm logs --local --file FILE', or '--file -' to read another command's output."
)


@dataclass(frozen=True)
class Filter:
    """Which lines are shown: the options' values. One that is empty or None matches every line."""

    model: str | None = None
    status: str | None = None
    code: str | None = None
    request_id: str | None = None
    #: In milliseconds.
    slower: float | None = None
    since: datetime | None = None

    @property
    def is_empty(self) -> bool:
        return self == Filter()

    def matches(self, record: Mapping[str, Any]) -> bool:
        """True if the line is shown."""
        return (
            (not self.model or record.get("model") == self.model)
            and (not self.status or str(record.get("status", "")).startswith(self.status))
            and (not self.code or record.get("code") == self.code)
            and (not self.request_id or record.get("request_id") == self.request_id)
            and (self.slower is None or milliseconds(record) >= self.slower)
            and (self.since is None or time_of(record) >= self.since)
        )


def milliseconds(record: Mapping[str, Any]) -> float:
    """Return how long a line's request took; -1 for another line. nginx logs seconds."""
    for name, factor in (("ms", 1.0), ("seconds", 1000.0)):
        value = record.get(name)
        if isinstance(value, (int, float)):
            return value * factor
    return -1.0


def time_of(record: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(str(record["time"]).replace("Z", "+00:00"))


def parse(line: str) -> dict[str, Any] | None:
    """Return the record of a line without a log driver's prefix; None if it is not a line of a box."""
    start = line.find("{")
    try:
        record = json.loads(line[start:]) if start >= 0 else None
        if isinstance(record, dict) and {"level", "message", "process"} <= record.keys():
            time_of(record)
            return record
    except (ValueError, LookupError):
        pass
    return None


def show(
    lines: Iterator[str], criteria: Filter, write: Callable[[str], object], *, last: int | None, raw: bool
) -> int:
    """Print the lines that match, the ``last`` ones or as they come. Returns their number."""
    colour = not raw and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    parsed = ((line, parse(line)) for line in lines)
    texts = (
        line.rstrip("\n") if raw else format_record(record, colour)
        for line, record in parsed
        if record and criteria.matches(record)
    )
    count = 0
    for text in texts if last is None else deque(texts, maxlen=last):
        write(text)
        count += 1
    return count


def format_record(record: Mapping[str, Any], colour: bool) -> str:
    """Format a line for people, with its local date."""
    return f"{time_of(record).astimezone():%Y-%m-%d} {logs.as_text(record, colour)}"


def read(file: Path, follow: bool = False) -> Generator[str, None, None]:
    """Yield the lines of a log, its older half first; with ``follow`` also those to come, for ever."""
    older = file.with_name(file.name + OLDER)
    try:
        for half in (older, file) if older.is_file() else (file,):
            with half.open(errors="replace") as lines:
                if follow and half == file:
                    break
                yield from lines
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}.") from None
    if follow:
        # It also follows a log that the box has replaced or emptied.
        command = ["tail", "--lines=+1", "--follow=name", "--retry", "--quiet", str(file)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
        ) as process:
            try:
                assert process.stdout is not None
                yield from process.stdout
            finally:
                process.kill()


def find(settings: Settings) -> Path:
    """Return the newest of the cache's logs and of the outputs of running boxes."""
    cached = list((settings.cache / "logs").glob("*.jsonl"))
    outputs = [box.output for box in local_boxes.running()]
    files = [file for file in (*cached, *outputs) if file.is_file()]
    if not files:
        raise CommandError(NO_LOG)
    return max(files, key=lambda file: file.stat().st_mtime)


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
    project_file.complete(options, project_options())
    if not options.name:
        raise CommandError("name the endpoint, or read the log of a box on this machine with --local.")
    filters = ("file", *(criterion.name for criterion in fields(Filter)), "json")
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
    criteria = Filter(*(getattr(options, criterion.name) for criterion in fields(Filter)))
    if options.file == "-":
        lines, source = iter(sys.stdin), "standard input"
    else:
        file = Path(options.file) if options.file else find(Settings.read(os.environ))
        lines, source = read(file, options.follow), str(file)
        boxes = local_boxes.running()
        found = next((box for box in boxes if box.writes(file)), None)
        Progress(sys.stderr).say(f"the log is {source}{local_boxes.name_others(found, boxes, '--file')}")
    last = options.lines
    if last is None and criteria.is_empty and not options.follow:
        last = DEFAULT_LINES
    if options.follow:
        last = None
    results = Progress(sys.stdout)
    if show(lines, criteria, results.say, last=last, raw=options.json):
        return 0
    Progress(sys.stderr).say(f"no line in {source} matches")
    return 1
