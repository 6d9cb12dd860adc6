"""Parse the output of children: JSON, Triton's and nginx's forms, Python tracebacks, and other text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import orjson

from sm.server.logs import LEVELS

#: Bytes kept of a line, or of a traceback's lines together.
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
#: Codes for colours and the like, which some libraries print even into a pipe.
TERMINAL_CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
QUERY = re.compile(r"\?[^\s\"]*")
#: Triton prints tables of its options and models, which repeat other lines.
TABLE = ("+--", "| ")
TRACEBACK = "Traceback (most recent call last):"

TRITON_LEVELS = {"I": "info", "W": "warning", "E": "error", "F": "critical", "V": "debug"}
NGINX_LEVELS = {
    "notice": "info",
    "warn": "warning",
    "crit": "critical",
    "alert": "critical",
    "emerg": "critical",
}

Members = dict[str, Any]


def parse(line: str) -> Members:
    """Return a line's ``level`` and ``message``, and further members of a JSON line.

    A JSON line keeps a valid ``time``. Other times are dropped: Triton's has no year, nginx's no zone.
    """
    line = TERMINAL_CODE.sub("", line)
    for parse_form in (_parse_json_line, _parse_triton_line, _parse_nginx_line):
        members = parse_form(line)
        if members is not None:
            return members
    if line.startswith(TABLE):
        return {"level": "debug", "message": line}
    return {"level": "error" if line.startswith(TRACEBACK) else "info", "message": line}


def _parse_json_line(line: str) -> Members | None:
    if not line.startswith("{"):
        return None
    members = _parse_json(line)
    if not isinstance(members, dict) or not isinstance(members.get("message"), str):
        return None
    members["message"] = TERMINAL_CODE.sub("", members["message"])
    if members.get("level") not in LEVELS:
        members["level"] = "info"
    if "time" in members and not _is_time(members["time"]):
        del members["time"]
    return members


def _parse_json(line: str) -> Any:
    """Parse JSON; None if it is none. Python's parser accepts a little more."""
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


def _parse_triton_line(line: str) -> Members | None:
    match = TRITON.match(line)
    if match is None:
        return None
    text = match["text"]
    if text.startswith('"'):  # newer servers quote as JSON does
        try:
            text = str(json.loads(text))
        except ValueError:
            text = text.strip('"')
    # Triton prints an empty line above a table.
    level = TRITON_LEVELS[match["letter"] or match["iso"]] if text.strip() else "debug"
    return {"level": level, "message": text, "place": match["place"]}


def _parse_nginx_line(line: str) -> Members | None:
    match = NGINX.match(line)
    if match is None:
        return None
    level = NGINX_LEVELS.get(match["level"], match["level"])
    # A query may contain a key.
    return {"level": level if level in LEVELS else "info", "message": QUERY.sub("?…", match["text"])}


class LineSplitter:
    """Splits one child's output into lines, decodes them, cuts long ones, and joins those of a traceback."""

    def __init__(self, emit: Callable[[Members], None]) -> None:
        self._emit = emit
        self._partial_line = b""
        self._cut = False
        self._traceback: list[str] = []

    def feed(self, data: bytes) -> None:
        """Add bytes that were read from the pipe."""
        *lines, partial = (self._partial_line + data).split(b"\n")
        for line in lines:
            self._handle_line(line)
        # The part of a line beyond the limit is dropped.
        self._partial_line = partial[: MAX_LINE_BYTES + 1]

    def end(self) -> None:
        """Handle a last line without a line end, after the pipe was closed."""
        if self._partial_line:
            self._handle_line(self._partial_line)
            self._partial_line = b""
        self._end_traceback()

    def _handle_line(self, raw: bytes) -> None:
        line = raw[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip("\r")
        if len(raw) > MAX_LINE_BYTES:
            line += " … (cut)"
        for members in self._parse_line(line):
            self._emit(members)

    def _parse_line(self, line: str) -> Iterator[Members]:
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


#: What Triton prints at each start without a GPU, some of it as an error.
GPU_MESSAGE = re.compile(
    r"Unable to allocate pinned system memory"
    r"|failed to allocate pinned system memory: no pinned memory pool"
    r"|CUDA memory pool disabled"
    r"|CudaDriverHelper has not been initialized"
    r"|(Error: )?Failed to initialize NVML"
    r"|DCGM unable to start"
    r"|Unable to get number of CUDA devices"
    r"|(unable to create stream for .*: )?CUDA driver version is insufficient"
)
SENTENCE = "there is no NVIDIA GPU here: Triton runs on the CPU"


class GpuLines:
    """Passes Triton's lines on. Without a GPU, its messages about that become debug lines."""

    def __init__(self, emit: Callable[[Members], None], has_gpu: bool) -> None:
        self._emit, self._has_gpu = emit, has_gpu
        self._explained = False

    def __call__(self, members: Members) -> None:
        if self._has_gpu or not GPU_MESSAGE.match(str(members["message"])):
            self._emit(members)
            return
        if not self._explained:
            self._explained = True
            self._emit({"level": "info", "message": SENTENCE})
        self._emit({**members, "level": "debug"})
