"""Say what a build does, a line for each step; the tools have the same with a bar while a step runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class PlainProgress:
    """Writes to ``stream``. Steps may run at once, in threads."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def say(self, line: str) -> None:
        """Write a line."""
        self.stream.write(f"{line}\n")  # in one piece, as other threads write too
        self.stream.flush()

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Say that ``what`` begins, and how long it took."""
        self.say(f"{what} …")
        started = time.monotonic()
        yield
        self.say(f"{what} … {time.monotonic() - started:.1f} s")
