"""The log: one JSON object a line, or text for people. Never a payload, a key or a token.

Every process of the box writes to a pipe that the supervisor reads. The router's own processes write JSON
lines there (:func:`configure`); :mod:`sm.server.supervisor.log_lines` parses the lines of Triton and nginx.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import orjson

LEVELS = ("debug", "info", "warning", "error", "critical")
COLOURS = {"debug": "2", "warning": "33", "error": "31", "critical": "1;31"}
#: Members of a record that the text form places itself or leaves out.
PLACED_MEMBERS = ("time", "process", "level", "message", "traceback", "logger", "place")
#: The member that makes a line CloudWatch's embedded metric format.
METRICS_MEMBER = "_aws"
#: Attributes of every record of Python's logging; all others are its ``extra``.
STANDARD_ATTRIBUTES = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}

Record = Mapping[str, Any]


def now() -> str:
    """Return the time as ISO 8601 in UTC, with milliseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def configure(level: str) -> None:
    """Send this process's log to standard error as JSON lines, from ``level`` upwards."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    # Lines do not name their place in the code: finding it takes half of a line's time.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


class JsonFormatter(logging.Formatter):
    """Format a record: ``time``, ``level``, ``message``, its ``extra``, and a ``traceback`` if there
    is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        members = {
            "time": now(),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in STANDARD_ATTRIBUTES},
            "logger": record.name,
        }
        if record.exc_info:
            members["traceback"] = self.formatException(record.exc_info)
        return as_json(members)


def as_json(record: Record) -> str:
    """Format a record as one line of JSON."""
    try:
        return orjson.dumps(record, default=str).decode()
    except TypeError:  # a lone surrogate, or a number of more than 64 bits
        return json.dumps(record, ensure_ascii=False, default=str)


def as_text(record: Record, colour: bool) -> str:
    """Format a record for people: local time, process, message and extra; a traceback goes below."""
    local_time = datetime.fromisoformat(record["time"].replace("Z", "+00:00")).astimezone()
    extra = "".join(f" {name}={value}" for name, value in record.items() if name not in PLACED_MEMBERS)
    message = f"{record['message']}{extra}"
    if record.get("traceback"):
        message = f"{message}\n{record['traceback']}"
    level = record["level"]
    prefix = "" if level in ("info", "debug") else f"{level}: "
    text = f"{prefix}{message}".replace("\n", "\n    ")
    if colour and level in COLOURS:
        text = f"\x1b[{COLOURS[level]}m{text}\x1b[0m"
    return f"{local_time:%H:%M:%S}.{local_time.microsecond // 1000:03d} {record['process']:<8}{text}"


class Formatter:
    """Turns records into lines, and drops those below the level."""

    def __init__(self, lowest_level: str, text: bool, colour: bool) -> None:
        self._lowest_level = LEVELS.index(lowest_level)
        self._text, self._colour = text, colour

    def line(self, process: str, members: Record) -> bytes:
        """Return the line for a record, which has at least ``level`` and ``message``; empty if it is
        dropped. Metrics for CloudWatch are always written, as JSON.
        """
        is_metrics = METRICS_MEMBER in members
        if LEVELS.index(members["level"]) < self._lowest_level and not is_metrics:
            return b""
        record = {
            "time": now(),
            "process": process,
            **{name: value for name, value in members.items() if name != "process"},
        }
        text = as_text(record, self._colour) if self._text and not is_metrics else as_json(record)
        return text.encode("utf-8", "replace") + b"\n"
