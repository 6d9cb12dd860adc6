"""Parse what children print: JSON, Triton's and nginx's forms, Python tracebacks, anything else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import orjson

from sm.logs import LEVELS

#: Bytes of a line, or of a traceback's lines together, that are kept.
MAX_LINE_BYTES = 64 * 1024

#: ``I1121 10:43:08.123456 99 server.cc:273] "text"``, and with --log-format=ISO8601.
TRITON = re.compile(
    r"^(?:(?P<letter>[IWEFV])\d{4} \d\d:\d\d:\d\d\.\d+|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (?P<iso>[IWEFV]))"
    r" +\d+ (?P<place>[^\]\s]+:\d+)\] ?(?P<text>.*)$",
    re.S,
)
#: ``2026/11/21 10:43:08 [error] 7#7: *1 text``, and ``nginx: [emerg] text`` before the log is open.
NGINX = re.compile(
    r"^(?:\d{4}/\d\d/\d\d \d\d:\d\d:\d\d|nginx:) \[(?P<level>\w+)\] (?:\d+#\d+: )?(?P<text>.*)$", re.S
)
QUERY = re.compile(r"\?[^\s\"]*")
#: Triton draws tables of its options and models, sixty lines of what other lines have said.
TABLE = ("+--", "| ")
TRACEBACK = "Traceback (most recent call last):"

LETTERS = {"I": "info", "W": "warning", "E": "error", "F": "critical", "V": "debug"}
WORDS = {"notice": "info", "warn": "warning", "crit": "critical", "alert": "critical", "emerg": "critical"}

Members = dict[str, Any]


def parse(line: str) -> Members:
    """A line's ``level`` and ``message``, and what a JSON line has besides. The child's own ``time`` is
    kept where it is a whole one; Triton's has no year and nginx's no zone."""
    for read in (_json, _triton, _nginx):
        found = read(line)
        if found is not None:
            return found
    if line.startswith(TABLE):
        return {"level": "debug", "message": line}
    return {"level": "error" if line.startswith(TRACEBACK) else "info", "message": line}


def _json(line: str) -> Members | None:
    if not line.startswith("{"):
        return None
    members = _loaded(line)
    if not isinstance(members, dict) or not isinstance(members.get("message"), str):
        return None
    if members.get("level") not in LEVELS:
        members["level"] = "info"
    if "time" in members and not _is_time(members["time"]):
        del members["time"]
    return members


def _loaded(line: str) -> Any:
    """None for what is no JSON; Python's own is a little more."""
    for loads in (orjson.loads, json.loads):
        try:
            return loads(line)
        except (ValueError, RecursionError):
            continue
    return None


def _is_time(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(datetime.fromisoformat(value.replace("Z", "+00:00")))
    except ValueError:
        return False


def _triton(line: str) -> Members | None:
    match = TRITON.match(line)
    if match is None:
        return None
    text = match["text"]
    if text.startswith('"'):  # newer servers quote as JSON does
        try:
            text = str(json.loads(text))
        except ValueError:
            text = text.strip('"')
    # Above a table stands a line of nothing.
    level = LETTERS[match["letter"] or match["iso"]] if text.strip() else "debug"
    return {"level": level, "message": text, "place": match["place"]}


def _nginx(line: str) -> Members | None:
    match = NGINX.match(line)
    if match is None:
        return None
    level = WORDS.get(match["level"], match["level"])
    # A query may hold a key.
    return {"level": level if level in LEVELS else "info", "message": QUERY.sub("?…", match["text"])}


class Lines:
    """Bytes of one child to lines: cut, decoded, a Python traceback as one."""

    def __init__(self, emit: Callable[[Members], None]) -> None:
        self._emit = emit
        self._rest = b""
        self._cut = False
        self._traceback: list[str] = []

    def feed(self, data: bytes) -> None:
        """Whatever was read from the pipe."""
        *whole, rest = (self._rest + data).split(b"\n")
        for line in whole:
            self._line(line)
        # What comes of a line beyond the limit is dropped as it comes.
        self._rest = rest[: MAX_LINE_BYTES + 1]

    def end(self) -> None:
        """The pipe is closed: what is there is all there will be."""
        if self._rest:
            self._line(self._rest)
            self._rest = b""
        self._end_traceback()

    def _line(self, raw: bytes) -> None:
        line = raw[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip("\r")
        if len(raw) > MAX_LINE_BYTES:
            line += " … (cut)"
        for members in self._members(line):
            self._emit(members)

    def _members(self, line: str) -> Iterator[Members]:
        if self._traceback:
            self._traceback.append(line)
            size = sum(map(len, self._traceback))
            if not line.startswith((" ", "\t")) or size > MAX_LINE_BYTES:
                self._end_traceback()
        elif line.startswith(TRACEBACK):
            self._traceback = [line]
        elif line.strip():
            yield parse(line)

    def _end_traceback(self) -> None:
        if self._traceback:
            members = parse("\n".join(self._traceback))
            self._traceback = []
            self._emit(members)
