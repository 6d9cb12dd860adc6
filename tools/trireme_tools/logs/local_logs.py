"""Find, read, filter and print the log of a box on this machine."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from sm.commands import local_boxes
from sm.errors import CommandError
from sm.server import logs
from sm.settings import Settings

#: Seconds between two polls of a log that is followed.
POLL_INTERVAL_S = 0.2
#: Lines that are shown without a filter.
DEFAULT_LINES = 100
#: The end of the name of the older half of a log.
OLDER = ".1"
NO_LOG = (
    "there is no log of a box on this machine. Start the box with TRIREME_LOG_FILE=FILE, or name its log: "
    "'sm logs --local --file FILE', or '--file -' to read another command's output."
)


@dataclass(frozen=True)
class Filter:
    """Which lines are shown. A field that is empty or None matches every line."""

    model: str = ""
    status: str = ""
    code: str = ""
    request_id: str = ""
    slower_ms: float | None = None
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
            and (self.slower_ms is None or milliseconds(record) >= self.slower_ms)
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


def read(
    file: Path, follow: bool = False, wait: Callable[[float], object] = time.sleep
) -> Generator[str, None, None]:
    """Yield the lines of a log, its older half first; with ``follow`` also those to come, for ever."""
    try:
        older = file.with_name(file.name + OLDER)
        if older.is_file():
            with older.open(errors="replace") as lines:
                yield from lines
        stream: BinaryIO = file.open("rb")
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}.") from None
    partial = b""
    try:
        while True:
            for piece in stream:
                partial += piece
                if partial.endswith(b"\n"):
                    yield partial.decode(errors="replace")
                    partial = b""
            if not follow:
                break
            wait(POLL_INTERVAL_S)
            stream = _reopen_if_replaced(stream, file)
    finally:
        stream.close()
    if partial:
        yield partial.decode(errors="replace")


def _reopen_if_replaced(stream: BinaryIO, file: Path) -> BinaryIO:
    """Return the stream, or a new one if the box has replaced or emptied the file."""
    try:
        now = file.stat()
        if now.st_ino == os.fstat(stream.fileno()).st_ino and now.st_size >= stream.tell():
            return stream
        replacement = file.open("rb")
    except OSError:
        return stream
    stream.close()
    return replacement


def find(settings: Settings) -> Path:
    """Return the log that is set, else the newest of the cache's logs and of the outputs of running boxes."""
    if settings.log_file:
        return settings.log_file
    cached = list((settings.cache / "logs").glob("*.jsonl"))
    outputs = [box.output for box in local_boxes.running()]
    files = [file for file in (*cached, *outputs) if file.is_file()]
    if not files:
        raise CommandError(NO_LOG)
    return max(files, key=lambda file: file.stat().st_mtime)
