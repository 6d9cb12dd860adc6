"""What a long step shows: one live line on a terminal, else a line every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

#: Seconds between two looks, on a terminal and elsewhere.
LIVE, PLAIN = 0.2, 5.0
#: Characters of the bar on a terminal.
BAR = 20


class Progress:
    """Tells on ``stream`` what is being done, how far it is and how long it took."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.live = stream.isatty()

    def say(self, line: str) -> None:
        """A line of its own."""
        print(line, file=self.stream, flush=True)

    @contextmanager
    def step(self, what: str, size: int = 0, done: Callable[[], int] | None = None) -> Iterator[None]:
        """Show ``what`` while the body runs. ``done()`` is how many of ``size`` bytes are there."""
        started, over = time.monotonic(), threading.Event()

        def line() -> str:
            so_far = self._so_far(min(done(), size), size) if done else ""
            return f"{what} … {so_far}{time.monotonic() - started:.1f} s"

        def tick() -> None:
            while not over.wait(LIVE if self.live else PLAIN):
                self._show(line())

        ticker = threading.Thread(target=tick, name="progress", daemon=True)
        ticker.start()
        try:
            yield
        except BaseException:
            self._end(over, ticker, f"{line()}, not finished")
            raise
        # The bytes are counted no more: the finished file has left its temporary folder.
        took = f"{time.monotonic() - started:.1f} s"
        self._end(over, ticker, f"{what} … {_megabytes(size) + ', ' if size else ''}{took}")

    def _so_far(self, done: int, size: int) -> str:
        full = BAR * done // max(1, size)
        bar = f"{'█' * full}{'░' * (BAR - full)} " if self.live else ""
        return f"{bar}{_megabytes(done)} of {_megabytes(size)}, "

    def _show(self, line: str) -> None:
        if self.live:
            print(f"\r\x1b[2K{line}", end="", file=self.stream, flush=True)
        else:
            self.say(line)

    def _end(self, over: threading.Event, ticker: threading.Thread, line: str) -> None:
        over.set()
        ticker.join()
        self._show(line)
        if self.live:
            self.say("")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
