"""The log: one JSON object a line, or text for people. Never a payload, a key or a token.

Every process of the box writes to a pipe that the supervisor reads: the router's own processes JSON lines
(:func:`configure`), Triton, nginx and the models lines of their own forms (:func:`parse`). The supervisor
writes them to standard output without blocking, even if that is slow or closed, and to a file."""

from __future__ import annotations

import json
import logging
import os
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from selectors import EVENT_WRITE, BaseSelector
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

if TYPE_CHECKING:
    from sm.run_state import Box
    from sm.settings import Settings

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
    threading.excepthook = log_failed_thread
    # Lines do not name their place in the code: finding it takes half of a line's time.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def log_failed_thread(failure: threading.ExceptHookArgs) -> None:
    """Log a thread's exception as one line: Python would write it in pieces, into lines of other threads."""
    if failure.exc_type is SystemExit:
        return
    name = failure.thread.name if failure.thread else "a thread"
    error = failure.exc_value or failure.exc_type()
    logging.getLogger(__name__).error("the thread %s has failed", name, exc_info=error)


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

    def report_lost(self, reason: str) -> Callable[[int], bytes]:
        """Return a function that formats the line about a number of lines that are missing."""
        return lambda count: self.line("serve", {"level": "error", "message": f"{count} lines {reason}"})


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
    try:
        members = json.loads(line)  # takes a little more than orjson
    except (ValueError, RecursionError):
        return None
    if not isinstance(members, dict) or not isinstance(members.get("message"), str):
        return None
    members["message"] = TERMINAL_CODE.sub("", members["message"])
    if members.get("level") not in LEVELS:
        members["level"] = "info"
    if "time" in members and not _is_time(members["time"]):
        del members["time"]
    return members


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


#: Lines that Triton prints at each start without a GPU, some of them as errors.
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
#: How Triton reports that the load of a model begins and ends. 2.51 and 2.71 have the same words.
LOAD_BEGINS = re.compile(r"loading: (?P<model>.+):\d+")
LOAD_ENDS = re.compile(r"(?:successfully loaded|failed to load) '(?P<model>[^']+)'")


class TritonLines:
    """Passes Triton's lines on, and keeps which models they leave loading.

    Triton's ports are closed while it loads its first models, so only its log tells. A model can print such
    lines too: they choose the words of an error, and nothing else. Without a GPU, messages about that become
    debug lines, after one that says so.
    """

    def __init__(self, emit: Callable[[Members], None], has_gpu: bool = True) -> None:
        self._emit, self._has_gpu = emit, has_gpu
        self._has_explained = False
        self._loads: dict[str, bool] = {}

    def loading(self, models: Iterable[str]) -> list[str]:
        """Return the models that are loading; if none is, those of ``models`` whose load has not ended."""
        began = [model for model, is_loading in self._loads.items() if is_loading]
        return began or [model for model in models if self._loads.get(model, True)]

    def __call__(self, members: Members) -> None:
        if members.get("place"):
            for pattern in (LOAD_BEGINS, LOAD_ENDS):
                if match := pattern.match(members["message"]):
                    self._loads[match["model"]] = pattern is LOAD_BEGINS
        if not self._has_gpu and GPU_MESSAGE.match(members["message"]):
            if not self._has_explained:
                self._has_explained = True
                self._emit({"level": "info", "message": SENTENCE})
            members = {**members, "level": "debug"}
        self._emit(members)


#: Bytes that wait for a slow reader. Further lines are dropped and counted: if the supervisor stopped reading
#: the children's output instead, they would block.
MAX_BUFFERED_BYTES = 4 * 2**20
#: A pipe that is ready accepts this much without blocking (PIPE_BUF).
PIPE_BUF_BYTES = 4096


class NonBlockingWriter:
    """Writes to a file descriptor when it is ready, and never waits.

    The descriptor is not made non-blocking, as that would apply to every process that shares the terminal.
    """

    def __init__(self, descriptor: int, selector: BaseSelector, report_lost: Callable[[int], bytes]) -> None:
        """``report_lost`` returns the line that reports a number of dropped lines."""
        self.descriptor, self.selector, self.report_lost = descriptor, selector, report_lost
        self._buffer = bytearray()
        self._dropped = 0
        self._reader_gone = False

    def write(self, line: bytes) -> None:
        """Write one line with its line end."""
        if self._reader_gone:
            return
        if len(self._buffer) + len(line) > MAX_BUFFERED_BYTES:
            self._dropped += 1
            return
        if self._dropped:
            line, self._dropped = self.report_lost(self._dropped) + line, 0
        if not self._buffer:
            try:
                self.selector.register(self.descriptor, EVENT_WRITE, self._write)
            except (OSError, ValueError):
                self._give_up()
                return
        self._buffer += line

    def flush(self, seconds: float) -> None:
        """Write what is waiting, for at most ``seconds``."""
        end = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        while self._buffer and (remaining := end - time.monotonic()) > 0:
            if poll.poll(remaining * 1000):
                self._write()

    def _write(self) -> None:
        try:
            del self._buffer[: os.write(self.descriptor, self._buffer[:PIPE_BUF_BYTES])]
        except BlockingIOError:  # somebody else made it non-blocking
            return
        except OSError:
            self._give_up()
            return
        if not self._buffer:
            self.selector.unregister(self.descriptor)

    def _give_up(self) -> None:
        """Stop writing: the reader is gone for good."""
        self._reader_gone = True
        if self.descriptor in self.selector.get_map():
            self.selector.unregister(self.descriptor)
        self._buffer.clear()


#: Takes a record of a process.
Sink = Callable[[str, Record], object]


class Desk(NamedTuple):
    """A row of the door ``sm.desk``: what a person gets who starts a box."""

    #: Opens what keeps the log beside standard output; None if it cannot.
    open_log: Callable[[Settings], Sink | None]
    #: Returns the text that is written to the terminal when the box is ready.
    hint: Callable[[Settings, Box], str]
    #: Watches the clients' files in a worker of ``serve --reload``. Called with what finds the clients, their
    #: folders, a folder that all workers share, and what takes the clients that were found.
    watch_clients: Callable[..., object]


class Log:
    """Writes the lines of all processes to one output, also before the event loop runs."""

    def __init__(
        self,
        formatter: Formatter,
        selector: BaseSelector,
        descriptor: int = 1,
        sinks: Iterable[Sink] = (),
    ) -> None:
        """``sinks`` get the records too."""
        self._formatter, self._sinks = formatter, tuple(sinks)
        report_lost = formatter.report_lost("were dropped: standard output is read too slowly")
        self.output = NonBlockingWriter(descriptor, selector, report_lost)

    def write(self, process: str, members: Mapping[str, Any]) -> None:
        if line := self._formatter.line(process, members):
            self.output.write(line)
            for sink in self._sinks:
                sink(process, members)

    def log(self, level: str, message: str) -> None:
        """Log a line of the supervisor itself."""
        self.write("serve", {"level": level, "message": message})

    def fail(self, message: str, traceback: str) -> None:
        """Log an error of the supervisor with its traceback."""
        self.write("serve", {"level": "critical", "message": message, "traceback": traceback})
