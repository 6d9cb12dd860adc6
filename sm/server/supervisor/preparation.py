"""Work that must end before the servers start, in processes of its own; ``/ping`` says how far it is."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable
from selectors import BaseSelector

from sm.errors import StartError
from sm.server.supervisor.processes import STOPPING, Command, Processes, Signals, Watchdog
from sm.server.supervisor.unavailable_responder import UnavailableResponder
from sm.settings import PACKAGE

#: Seconds between two checks, and for the last callers to read their answer.
POLL_INTERVAL_S, CLOSE_GRACE_S = 0.05, 0.5


class StopRequested(Exception):
    """A signal asked the box to stop."""


class Preparation:
    """Runs one process after the other, and answers callers meanwhile."""

    def __init__(
        self,
        listener: socket.socket,
        selector: BaseSelector,
        signals: Signals,
        processes: Processes,
        watchdog: Watchdog | None,
    ) -> None:
        self._selector, self._signals, self._processes = selector, signals, processes
        self._watchdog = watchdog
        #: What ``/ping`` says.
        self.reason = "the box is starting"
        self._responder = UnavailableResponder(listener, selector, lambda: self.reason, time.monotonic)

    def run(self, arguments: tuple[str, ...], report: Callable[[str], None]) -> str:
        """Run a Python module, and return the last line of its output.

        Args:
            arguments: The module and its arguments.
            report: Called very often with that line so far.

        Raises:
            StartError: The process failed; the sentence is that line.
            StopRequested: A signal asked the box to stop. The process is killed.
        """
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
        pid, output = self._processes.spawn(Command((sys.executable, "-m", *arguments), environment))
        if self._watchdog:
            self._watchdog.add_group(pid)
        text = ""
        try:
            while (status := self._status(pid)) is None:
                text = _read(output, text)
                report(_last_line(text))
                self._answer_callers()
            line = _last_line(_read(output, text))
        except StopRequested:
            self._processes.kill(pid)
            self._processes.reap_all(CLOSE_GRACE_S, except_pid=self._watchdog.pid if self._watchdog else None)
            raise
        finally:
            os.close(output)
            if self._watchdog:
                self._watchdog.remove_group(pid)
            self._finish_answers()
        if status:  # -9: the kernel had no memory left
            raise StartError(line if status == 1 and line else f"{arguments[0]} ended with status {status}.")
        return line

    def _status(self, pid: int) -> int | None:
        """Return the process's exit status, None while it runs. Raises :class:`StopRequested`."""
        if any(number in STOPPING for number in self._signals.read()):
            raise StopRequested
        return dict(self._processes.reap()).get(pid)

    def _answer_callers(self, active: bool = True) -> None:
        """Answer callers for one interval."""
        self._responder.serve(active)
        registered = self._selector.get_map()
        for key, _ in self._selector.select(POLL_INTERVAL_S):
            # An earlier event of this round may have closed this file.
            if registered.get(key.fd) is key:
                key.data()

    def _finish_answers(self) -> None:
        """Give the last callers time to read their answer."""
        end = time.monotonic() + CLOSE_GRACE_S
        while self._responder.busy and time.monotonic() < end:
            self._answer_callers(active=False)


def _read(output: int, text: str) -> str:
    """Append what a process has written to the end of what it wrote before."""
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(output, 1 << 16):
            text = (text + chunk.decode(errors="replace"))[-(1 << 16) :]
    return text


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
