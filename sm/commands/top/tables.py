"""The tables of ``sm top``, as objects that ``rich`` prints."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

MODEL_COLUMNS = (
    "model",
    "ver.",
    "engine",
    "state",
    "req/s",
    "p50",
    "p95",
    "p99",
    "errors",
    "in flight",
    "queue",
)
PROCESS_COLUMNS = ("process", "state", "processes", "memory", "restarts")
#: Columns on the left; numbers are on the right.
TEXT_COLUMNS = {"model", "ver.", "engine", "state", "process"}
GOOD, BAD = "green", "bold red"
MAX_EVENTS = 5
NO_VALUE = "-"


def show(numbers: dict[str, Any], url: str) -> Group:
    """Return all tables for a box's answer."""
    box = numbers["box"]
    parts: list[Any] = [_headline(box, url), Text(), _models(box), Text(), _processes(box)]
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
    """Return the models that are served or had requests, the busiest first."""
    table = _table(MODEL_COLUMNS)
    recent = box["last_minute"]
    served = {row["name"]: row for row in box["models"]}
    names = sorted(
        served.keys() | recent["models"].keys(), key=lambda name: (-_request_count(recent, name), name)
    )
    for name in names:
        row, numbers = served.get(name), recent["models"].get(name, {})
        state = row["state"] if row else "not served"
        errors = _errors(numbers)
        table.add_row(
            Text("no model" if name == "-" else name),
            ", ".join(row["versions"]) if row else NO_VALUE,
            Text((row and row.get("engine")) or NO_VALUE),
            Text(state, GOOD if state == "ready" else BAD if row else ""),
            _rate(numbers, recent["seconds"]),
            *(duration(numbers.get(percentile)) for percentile in ("p50_ms", "p95_ms", "p99_ms")),
            Text(str(errors), BAD if errors else ""),
            str(numbers.get("threads", 0)),
            str(numbers.get("queue", 0)),
        )
    return table


def _processes(box: dict[str, Any]) -> Table:
    table = _table(PROCESS_COLUMNS)
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


def _table(columns: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(
            name, justify="left" if name in TEXT_COLUMNS else "right", no_wrap=name not in TEXT_COLUMNS
        )
    return table


def _request_count(recent: dict[str, Any], name: str) -> int:
    return sum(recent["models"].get(name, {}).get("answers", {}).values())


def _errors(numbers: dict[str, Any]) -> int:
    answers = numbers.get("answers", {})
    return int(answers.get("4xx", 0) + answers.get("5xx", 0))


def _rate(numbers: dict[str, Any], seconds: float) -> str:
    per_second = sum(numbers.get("answers", {}).values()) / (seconds or 1)
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
