"""Show the progress of a long step: rich's live line on a terminal, else a plain line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from sm.polling import Poll

#: Seconds between two updates, on a terminal and elsewhere.
LIVE_INTERVAL_S, PLAIN_INTERVAL_S = 0.2, 5.0
#: Columns of the bar on a terminal.
BAR_COLUMNS = 24


class Progress:
    """Writes to ``stream`` what is being done, how far it is, and how long it took."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.live = stream.isatty()
        #: Writes above the bar, while one is shown.
        self._above: Callable[[str], None] | None = None

    def say(self, line: str) -> None:
        """Write a line."""
        if self._above:
            self._above(line)
        else:
            print(line, file=self.stream, flush=True)

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

        def duration() -> str:
            return f"{time.monotonic() - started:.1f} s"

        def so_far() -> str:
            return f"{count(min(done(), size))} of {count(size)}, " if done else ""

        try:
            with self._shown(what, size, done, lambda: f"{so_far()}{duration()}"):
                yield
        except BaseException:
            self.say(f"{what} … {so_far()}{duration()}, not finished")
            raise
        # Do not count bytes here: the finished file was moved out of its temporary folder.
        self.say(f"{what} … {count(size) + ', ' if size else ''}{duration()}")

    @contextmanager
    def status(self, what: str, line: Callable[[], str]) -> Iterator[None]:
        """Show ``what`` with ``line()`` while the body runs, on a terminal; elsewhere nothing."""
        if not self.live:
            yield
            return
        with self._bar(what, 0, None, line):
            yield

    @contextmanager
    def _shown(
        self, what: str, size: int, done: Callable[[], int] | None, line: Callable[[], str]
    ) -> Iterator[None]:
        if self.live:
            with self._bar(what, size, done, line):
                yield
            return
        ticker = Poll("progress", PLAIN_INTERVAL_S, lambda: self.say(f"{what} … {line()}"))
        ticker.start()
        try:
            yield
        finally:
            ticker.stop()
            ticker.join()

    @contextmanager
    def _bar(
        self, what: str, size: int, done: Callable[[], int] | None, line: Callable[[], str]
    ) -> Iterator[None]:
        """Show a bar that disappears at the end. Without a size it moves to and fro."""
        from rich import progress
        from rich.console import Console
        from rich.table import Column

        columns = (
            progress.TextColumn("{task.description} …", markup=False),
            progress.BarColumn(BAR_COLUMNS),
            progress.TextColumn(
                "{task.fields[line]}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis"),
            ),
        )
        console = Console(file=self.stream, highlight=False)
        with progress.Progress(
            *columns, console=console, transient=True, auto_refresh=False
        ) as live_progress:
            task = live_progress.add_task(what, total=size if done else None, line=line())

            def show() -> None:
                live_progress.update(
                    task, completed=min(done(), size) if done else 0, line=line(), refresh=True
                )

            ticker = Poll("progress", LIVE_INTERVAL_S, show)
            ticker.start()
            self._above = lambda text: console.print(text, markup=False, soft_wrap=True)
            try:
                yield
            finally:
                self._above = None
                ticker.stop()
                ticker.join()


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
