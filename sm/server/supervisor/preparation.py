"""Work that must end before the servers start, in processes of its own; ``/ping`` says how far it is."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from selectors import BaseSelector

from sm.errors import StartError
from sm.repository.overlay import LOG, find_missing_plans, fits, merge, same_source
from sm.server.logs import Log
from sm.server.supervisor.ports import ACCEPT_PAUSE_S, UnavailableResponder, handle_events
from sm.server.supervisor.processes import STOPPING, ChildCommand, Processes, Signals
from sm.settings import PACKAGE, Settings

#: Seconds for a process to end that was killed.
KILL_GRACE_S = 0.5
#: Seconds between two lines of the log about one process.
LOG_INTERVAL_S = 10.0


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
        log: Log,
    ) -> None:
        self._selector, self._signals, self._processes, self._log = selector, signals, processes, log
        #: The reason that ``/ping`` gives.
        self._reason = "the box is starting"
        self._logged_at = 0.0
        self._responder = UnavailableResponder(listener, selector, lambda: self._reason)

    def begin(self, reason: str) -> None:
        """Say in the log and in ``/ping`` what is done now."""
        self._reason, self._logged_at = reason, time.monotonic()
        self._log.log("info", reason)

    def _go_on(self, reason: str) -> None:
        """Say how far it is: in ``/ping`` at once, in the log now and then."""
        if reason and reason != self._reason:
            if time.monotonic() >= self._logged_at + LOG_INTERVAL_S:
                self.begin(reason)
            self._reason = reason

    def run(self, arguments: tuple[str, ...], progress: Callable[[str], str] = lambda _: "") -> str:
        """Run a Python module, and return the last line of its output.

        Args:
            arguments: The module and its arguments.
            progress: Called very often with that line so far. Returns how far it is; empty for no news.

        Raises:
            StartError: The process failed; the sentence is that line.
            StopRequested: A signal asked the box to stop. The process is killed.
        """
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
        pid, output = self._processes.spawn(ChildCommand((sys.executable, "-m", *arguments), environment))
        text = ""
        try:
            while (status := self._status(pid)) is None:
                text = _read(output, text)
                self._go_on(progress(_last_line(text)))
                self._responder.serve(True)
                handle_events(self._selector, ACCEPT_PAUSE_S)
            line = _last_line(_read(output, text))
        except StopRequested:
            self._processes.kill(pid)
            self._processes.reap_all(KILL_GRACE_S)
            raise
        finally:
            os.close(output)
            self._responder.finish()
        if status:  # -9: the kernel had no memory left
            raise StartError(line if status == 1 and line else f"{arguments[0]} ended with status {status}.")
        return line

    def _status(self, pid: int) -> int | None:
        """Return the process's exit status, None while it runs. Raises :class:`StopRequested`."""
        if any(number in STOPPING for number in self._signals.read()):
            raise StopRequested
        return dict(self._processes.reap()).get(pid)


def _read(output: int, text: str) -> str:
    """Append what a process has written to the end of what it wrote before."""
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(output, 1 << 16):
            text = (text + chunk.decode(errors="replace"))[-(1 << 16) :]
    return text


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def build_plans(repository: Path, settings: Settings, preparation: Preparation, log: Log) -> Path:
    """Build the plans that are missing, each in a process of its own. Returns the repository to serve.

    Raises:
        StartError: A plan could not be built, or the cache cannot be written.
    """
    missing, root = find_missing_plans(repository), settings.cache / "engines"
    if not missing:
        return repository
    try:
        overlay = root / hashlib.sha256(str(repository).encode()).hexdigest()[:16]
        merge(repository, overlay, missing)
        for number, version in enumerate(missing, 1):
            built = overlay / version.relative_to(repository)
            if fits(built) and same_source(version, built):
                log.log("info", f"{version.parent.name}: its plan in {built} is for this GPU")
            else:
                position = f"plan {number} of {len(missing)}, log: {built / LOG}"
                _build_plan(version, built, root / "times", position, preparation)
    except OSError as error:
        raise StartError(
            f"plans cannot be built into {root} ({error.strerror}): set TRIREME_CACHE to a folder "
            "that can be written."
        ) from error
    return overlay


def _build_plan(version: Path, built: Path, times: Path, position: str, preparation: Preparation) -> None:
    name, started, last_seconds = version.parent.name, time.monotonic(), _last_build_seconds(version)

    def so_far(_: str = "") -> str:
        return progress(name, time.monotonic() - started, last_seconds)

    preparation.begin(f"{so_far()} ({position})")
    preparation.run(("sm.repository.model_makers", "rebuild", *map(str, (version, built, times))), so_far)
    preparation.begin(f"{name}: its plan was built in {time.monotonic() - started:.0f} s")


def progress(model: str, elapsed: float, last_seconds: float | None) -> str:
    """Format the progress for ``/ping`` and the log; ``last_seconds`` is how long the last build took."""
    minutes = int(elapsed // 60)
    if last_seconds is None:
        return f"building {model}: {minutes} min so far"
    return f"building {model}: {minutes} of {max(minutes, 1, round(last_seconds / 60))} min"


def _last_build_seconds(version: Path) -> float | None:
    try:
        seconds = json.loads((version / "manifest.json").read_bytes()).get("seconds")
    except (OSError, ValueError, AttributeError):
        return None
    return seconds if isinstance(seconds, (int, float)) else None
