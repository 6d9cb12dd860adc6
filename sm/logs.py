"""The log: one JSON object a line, or text for people. Never a payload, a key or a token.

Every process of the box writes to a pipe of the supervisor's. The router's own processes write JSON lines
there (:func:`configure`); what Triton and nginx write is read by :mod:`sm.server.supervisor.log_lines`.
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
#: Members of a record that the text form shows elsewhere, or not.
PLACED = ("time", "process", "level", "message", "traceback", "logger", "place")
#: What every record of Python's logging has; the rest came as ``extra``.
STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}

Record = Mapping[str, Any]


def now() -> str:
    """This moment, ISO 8601, UTC, milliseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def configure(level: str) -> None:
    """Send this process's logging to standard error, a JSON object a line. ``level`` is a word."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    # No line says where in the code it comes from, and finding out is half of what a line costs.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


class JsonFormatter(logging.Formatter):
    """``time``, ``level``, ``message``, whatever came as ``extra``, and a ``traceback`` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        members = {
            "time": now(),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in STANDARD},
            "logger": record.name,
        }
        if record.exc_info:
            members["traceback"] = self.formatException(record.exc_info)
        return as_json(members)


def as_json(record: Record) -> str:
    """The line for machines."""
    try:
        return orjson.dumps(record, default=str).decode()
    except TypeError:  # half a character, a number of more than 64 bits
        return json.dumps(record, ensure_ascii=False, default=str)


def as_text(record: Record, colour: bool) -> str:
    """The line for people: local time, process, message, what else there is; a traceback below it."""
    moment = datetime.fromisoformat(record["time"].replace("Z", "+00:00")).astimezone()
    extra = "".join(f" {name}={value}" for name, value in record.items() if name not in PLACED)
    message = f"{record['message']}{extra}"
    if record.get("traceback"):
        message = f"{message}\n{record['traceback']}"
    word = record["level"]
    mark = "" if word in ("info", "debug") else f"{word}: "
    text = f"{mark}{message}".replace("\n", "\n    ")
    if colour and word in COLOURS:
        text = f"\x1b[{COLOURS[word]}m{text}\x1b[0m"
    return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d} {record['process']:<8}{text}"


class Formatter:
    """Records to the bytes of a line, or nothing where the level is too low."""

    def __init__(self, least: str, text: bool, colour: bool) -> None:
        self._least = LEVELS.index(least)
        self._text, self._colour = text, colour

    def line(self, process: str, members: Record) -> bytes:
        """``members`` has at least ``level`` and ``message``."""
        if LEVELS.index(members["level"]) < self._least:
            return b""
        record = {
            "time": now(),
            "process": process,
            **{name: value for name, value in members.items() if name != "process"},
        }
        text = as_text(record, self._colour) if self._text else as_json(record)
        return text.encode("utf-8", "replace") + b"\n"
