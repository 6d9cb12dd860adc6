"""``sm top``: a running box's models, rates, times, queues, processes and memory."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sm.commands import local_boxes
from sm.commands.api_keys import read_api_key
from sm.errors import CommandError
from sm.settings import Settings, names_of

TIMEOUT_S = 5.0
#: A time after every point, so that the answer has the present state only.
NO_POINTS = 1e12


def read(url: str, api_key: str = "") -> dict[str, Any]:
    """Return the numbers of the box at ``url``. Raises :class:`CommandError` if it has none."""
    path = f"/dashboard/data?since={NO_POINTS:.0f}"
    status, numbers = local_boxes.ask(url, path, api_key=api_key, timeout_s=TIMEOUT_S)
    if "box" in numbers:
        return numbers
    if status in (401, 403):
        raise CommandError(f"{url} wants an API key: name a file with --api-key ({numbers.get('error')}).")
    if status in (200, 404):
        raise CommandError(f"{url} has no /dashboard/data: it is not a box of Trireme, or an older one.")
    raise CommandError(f"{url} answers {status}: {numbers.get('error')}.")


#: Columns of words, on the left, and of numbers, on the right.
MODEL_COLUMNS = "model ver. engine source state", "size used"
REQUEST_COLUMNS = "model", "req/s p50 p95 p99 errors in-flight queue"
PROCESS_COLUMNS = "process state", "processes memory restarts"
GOOD, BAD = "green", "bold red"
STATES = {"ready": GOOD, "not ready": BAD}
MAX_EVENTS = 5
NO_VALUE = "-"


def show(numbers: dict[str, Any], url: str) -> Group:
    """Return all tables for a box's answer."""
    box = numbers["box"]
    parts: list[Any] = [_headline(box, url), Text(), _models(box), Text()]
    if box["last_minute"]["models"]:
        parts += [_requests(box["last_minute"]), Text()]
    parts.append(_processes(box))
    events = numbers["events"][-MAX_EVENTS:]
    if events:
        parts += [Text(), *(Text(f"{_clock(event['at'])}  {event['text']}") for event in reversed(events))]
    return Group(*parts)


def _headline(box: dict[str, Any], url: str) -> Text:
    recent, shared = box["last_minute"], box["shared_memory"]
    line = Text()
    line.append("ready" if box["ready"] else f"not ready: {box['reason']}", GOOD if box["ready"] else BAD)
    line.append(
        f"  {url}  {_clock(box['at'])}\n"
        f"{_rate(recent['all'], recent['seconds'])} req/s  p99 {duration(recent['all']['p99_ms'])}  "
        f"in flight {recent['all']['in_flight']}  queue {recent['all']['queue']}  "
        f"shared memory {size(shared['used'])} of {size(shared['size'])}"
    )
    return line


def _models(box: dict[str, Any]) -> Table:
    """Return what is served, the model first that was used last."""
    table = _table(*MODEL_COLUMNS)
    for row in sorted(box["models"], key=lambda row: (-(row["used"] or 0), row["name"])):
        table.add_row(
            Text(row["name"]),
            " ".join(filter(None, (", ".join(row["versions"]), row["revision"]))) or NO_VALUE,
            Text(row["engine"] or NO_VALUE),
            Text(row["source"]),
            Text(": ".join(filter(None, (row["state"], row["reason"]))), STATES.get(row["state"], "")),
            size(row["bytes"]),
            _clock(row["used"]) if row["used"] else NO_VALUE,
        )
    return table


def _requests(recent: dict[str, Any]) -> Table:
    """Return the models that had requests, the busiest first."""
    table = _table(*REQUEST_COLUMNS)
    by_model = recent["models"]
    for name in sorted(by_model, key=lambda name: (-sum(by_model[name]["answers"].values()), name)):
        numbers = by_model[name]
        errors = sum(numbers["answers"].get(kind, 0) for kind in ("4xx", "5xx"))
        table.add_row(
            Text("no model" if name == "-" else name),
            _rate(numbers, recent["seconds"]),
            *(duration(numbers[percentile]) for percentile in ("p50_ms", "p95_ms", "p99_ms")),
            Text(str(errors), BAD if errors else ""),
            str(numbers["threads"]),
            str(numbers["queue"]),
        )
    return table


def _processes(box: dict[str, Any]) -> Table:
    table = _table(*PROCESS_COLUMNS)
    for row in box["processes"]:
        good = row["state"] == "ready" and not row["stopped"]
        state = f"{row['state']}, {row['stopped']} stopped" if row["stopped"] else row["state"]
        table.add_row(
            row["name"],
            Text(state, GOOD if good else BAD),
            str(row["processes"]),
            size(row["memory"]),
            Text(str(row["restarts"]), BAD if row["restarts"] else ""),
        )
    return table


def _table(words: str, numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in words.split():
        table.add_column(name)
    for name in numbers.split():
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _rate(numbers: dict[str, Any], seconds: float) -> str:
    per_second = sum(numbers["answers"].values()) / (seconds or 1)
    return f"{per_second:.0f}" if per_second >= 100 else f"{per_second:.1f}"


def duration(milliseconds: float | None) -> str:
    """Format a time; a dash where there was no request."""
    if milliseconds is None:
        return NO_VALUE
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds:.3g} ms"


def size(number: float) -> str:
    """Format bytes in decimal units."""
    units = ("B", "KB", "MB", "GB", "TB")
    step = 0
    while number >= 1000 and step < len(units) - 1:
        number, step = number / 1000, step + 1
    return f"{number:.3g} {units[step]}" if number < 1000 else f"{number:.0f} {units[step]}"


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


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


INTERVAL_S = 2.0
#: Columns for programs and files, so that no table is wrapped.
PLAIN_COLUMNS = 200


def run(options: argparse.Namespace) -> int:
    """Show the tables; return 0 at Ctrl-C. Raises :class:`CommandError` if no box answers at the start."""
    url, api_key = options.url or find_url(), read_api_key(options.api_key)
    numbers = read(url, api_key)
    if options.json:
        json.dump(numbers, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0
    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_COLUMNS)
    tables = show(numbers, url)
    if options.once or not console.is_terminal:
        console.print(tables)
        return 0
    # The alternate screen: what was in the terminal before comes back at the end.
    try:
        with Live(tables, console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(INTERVAL_S)
                try:
                    tables = shown = show(read(url, api_key), url)
                except CommandError as error:  # the old numbers stay
                    shown = Group(Text(str(error), BAD), tables)
                live.update(shown, refresh=True)
    except KeyboardInterrupt:
        return 0


def find_url() -> str:
    """Return the address of the box on this machine: at the port that is set, else the newest."""
    boxes = local_boxes.running()
    if not boxes or any(name in os.environ for name in names_of("port")):
        return f"http://localhost:{Settings.read(os.environ).port}"
    if others := local_boxes.name_others(boxes[0], boxes, "--url"):
        sys.stderr.write(f"these are the numbers{others}\n")
    return boxes[0].url
