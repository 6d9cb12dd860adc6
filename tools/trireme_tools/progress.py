"""Show the progress of a long step: rich's live line on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TextIO

from sm.polling import Poll
from trireme_extensions.convert.progress import PlainProgress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

#: Seconds between two updates, on a terminal and elsewhere.
LIVE_INTERVAL_S, PLAIN_INTERVAL_S = 0.2, 5.0
#: Columns of the bar on a terminal.
BAR_COLUMNS = 24


class Progress(PlainProgress):
    """Writes to ``stream`` what is being done, how far it is, and how long it took.

    Steps may run at once, in threads.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.live = stream.isatty()
        #: The bars that are shown, and how many steps have one.
        self._bars: RichProgress | None = None
        self._steps, self._lock = 0, threading.Lock()

    def say(self, line: str) -> None:
        """Write a line."""
        with self._lock:
            if self._bars:
                self._bars.console.print(line, markup=False, soft_wrap=True)
            else:
                super().say(line)

    @contextmanager
    def step(
        self,
        what: str,
        size: int = 0,
        done: Callable[[], int] | None = None,
        format_count: Callable[[int], str] | None = None,
    ) -> Iterator[None]:
        """Show ``what`` while the body runs. ``done()`` returns how much of ``size`` is done, in bytes or in
        what ``format_count`` formats.
        """
        count = format_count or _megabytes
        started = time.monotonic()

        def line() -> str:
            so_far = f"{count(min(done(), size))} of {count(size)}, " if done else ""
            return f"{so_far}{time.monotonic() - started:.1f} s"

        lines = _calling(PLAIN_INTERVAL_S, lambda: self.say(f"{what} … {line()}"))
        try:
            with self._bar(what, line, size, done) if self.live else lines:
                yield
        except BaseException:
            self.say(f"{what} … {line()}, not finished")
            raise
        # Do not count bytes here: the finished file was moved out of its temporary folder.
        self.say(f"{what} … {count(size) + ', ' if size else ''}{time.monotonic() - started:.1f} s")

    def status(self, what: str, line: Callable[[], str]) -> AbstractContextManager[None]:
        """Show ``what`` with ``line()`` while the body runs, on a terminal; elsewhere nothing."""
        return self._bar(what, line) if self.live else nullcontext()

    @contextmanager
    def _bar(
        self, what: str, line: Callable[[], str], size: int = 0, done: Callable[[], int] | None = None
    ) -> Iterator[None]:
        """Show a bar that disappears at the end. Without a size it moves to and fro."""
        with self._shown_bars() as bars:
            task = bars.add_task(what, total=size if done else None, line=line())

            def show() -> None:
                completed = min(done(), size) if done else 0
                bars.update(task, completed=completed, line=line(), refresh=True)

            try:
                with _calling(LIVE_INTERVAL_S, show):
                    yield
            finally:
                bars.remove_task(task)

    @contextmanager
    def _shown_bars(self) -> Iterator[RichProgress]:
        """Yield the bars, one below the other; they appear with the first step and go with the last."""
        with self._lock:
            bars = self._bars = self._bars or self._make_bars()
            self._steps += 1
        try:
            yield bars
        finally:
            with self._lock:
                self._steps -= 1
                if not self._steps:
                    bars.stop()
                    self._bars = None

    def _make_bars(self) -> RichProgress:
        from rich import progress
        from rich.console import Console
        from rich.table import Column

        one_line = Column(no_wrap=True, overflow="ellipsis")
        columns = (
            progress.TextColumn("{task.description} …", markup=False),
            progress.BarColumn(BAR_COLUMNS),
            progress.TextColumn("{task.fields[line]}", markup=False, table_column=one_line),
        )
        console = Console(file=self.stream, highlight=False)
        bars = progress.Progress(*columns, console=console, transient=True, auto_refresh=False)
        bars.start()
        return bars


@contextmanager
def _calling(interval_s: float, function: Callable[[], None]) -> Iterator[None]:
    """Call a function at intervals while the body runs."""
    ticker = Poll("progress", interval_s, function)
    ticker.start()
    try:
        yield
    finally:
        ticker.stop()
        ticker.join()


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
