"""Build the TensorRT plans that this GPU needs before Triton starts (``TRIREME_BUILD_ENGINES``).

The repository may be read-only, so plans go into the cache. Triton serves a repository there with the new
plans and links to everything else. ``/ping`` shows the progress.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time
from pathlib import Path
from selectors import BaseSelector

from sm.errors import StartError
from sm.inspection.overlay import LOG, find_missing_plans, fits, merge, same_source
from sm.server.supervisor.log_writer import Log
from sm.server.supervisor.processes import Command, Processes
from sm.server.supervisor.signals import STOPPING, Signals
from sm.server.supervisor.unavailable_responder import UnavailableResponder
from sm.server.supervisor.watchdog import Watchdog
from sm.settings import PACKAGE, Settings

#: Seconds between two checks, between two lines of the log, and for the last callers to read their answer.
POLL_INTERVAL_S, PROGRESS_INTERVAL_S, CLOSE_GRACE_S = 0.05, 30.0, 0.5


class Stopping(Exception):
    """The box is told to stop."""


class PlanBuilder:
    """Builds one plan after the other, each in a process of its own."""

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        selector: BaseSelector,
        signals: Signals,
        processes: Processes,
        guard: Watchdog | None,
        log: Log,
    ) -> None:
        self._root = settings.cache.expanduser().absolute() / "engines"
        self._selector, self._signals, self._processes = selector, signals, processes
        self._guard, self._log = guard, log
        #: The reason that ``/ping`` gives meanwhile.
        self.reason = "the box is starting"
        self._doorman = UnavailableResponder(listener, selector, lambda: self.reason, time.monotonic)

    def run(self, repository: Path) -> Path | None:
        """Build the plans. Returns the repository to serve, None if the box is told to stop. Raises
        :class:`StartError`.
        """
        wanting = find_missing_plans(repository)
        if not wanting:
            return repository
        try:
            merged = self._root / hashlib.sha256(str(repository).encode()).hexdigest()[:16]
            merge(repository, merged, wanting)
            for number, version in enumerate(wanting, 1):
                built = merged / version.relative_to(repository)
                if fits(built) and same_source(version, built):
                    self._log.log("info", f"{version.parent.name}: its plan in {built} is for this GPU")
                elif not self._build(version, built, f"{number} of {len(wanting)}"):
                    return None
        except OSError as error:
            raise StartError(
                f"plans cannot be built into {self._root} ({error.strerror}): set TRIREME_CACHE to a folder "
                "that can be written."
            ) from error
        finally:
            self._finish_answers()
        return merged

    def _build(self, version: Path, built: Path, which: str) -> bool:
        """Build a plan. Returns False if the box is told to stop."""
        name, started, reported_at = version.parent.name, time.monotonic(), -PROGRESS_INTERVAL_S
        usual = _seconds(version)
        command = (
            sys.executable,
            "-m",
            "sm.tensorrt.rebuild",
            str(version),
            str(built),
            str(self._root / "times"),
        )
        pid, output = self._processes.spawn(
            Command(command, {**os.environ, "PYTHONPATH": str(PACKAGE.parent)})
        )
        if self._guard:
            self._guard.group(pid)
        try:
            while (status := self._status(pid)) is None:
                elapsed = time.monotonic() - started
                self.reason = progress(name, elapsed, usual)
                if elapsed - reported_at >= PROGRESS_INTERVAL_S:
                    reported_at = elapsed
                    self._log.log("info", f"{self.reason} (plan {which}, log: {built / LOG})")
                self._answer_callers()
            if status:
                text = os.read(output, 1 << 16).decode(errors="replace").strip()
                raise StartError(text.splitlines()[-1] if text else f"{name}: its plan could not be built.")
        except Stopping:
            self._processes.kill(pid)
            return False
        finally:
            os.close(output)
            if self._guard:
                self._guard.forget(pid)
        self._log.log("info", f"{name}: its plan was built in {time.monotonic() - started:.0f} s")
        return True

    def _status(self, pid: int) -> int | None:
        """Return the process's exit status, None while it runs. Raises :class:`Stopping`."""
        if any(number in STOPPING for number in self._signals.take()):
            raise Stopping
        return dict(self._processes.reap()).get(pid)

    def _answer_callers(self, active: bool = True) -> None:
        """Answer callers for one interval."""
        self._doorman.serve(active)
        registered = self._selector.get_map()
        for key, _ in self._selector.select(POLL_INTERVAL_S):
            # An earlier event of this round may have closed this one's file.
            if registered.get(key.fd) is key:
                key.data()

    def _finish_answers(self) -> None:
        """Let the last callers read their answer."""
        end = time.monotonic() + CLOSE_GRACE_S
        while self._doorman.busy and time.monotonic() < end:
            self._answer_callers(active=False)


def progress(model: str, elapsed: float, usual: float | None) -> str:
    """Format the progress for ``/ping`` and the log; ``usual`` is the seconds of the last build."""
    minutes = int(elapsed // 60)
    if usual is None:
        return f"building {model}: {minutes} min so far"
    return f"building {model}: {minutes} of {max(minutes, 1, round(usual / 60))} min"


def _seconds(version: Path) -> float | None:
    try:
        seconds = json.loads((version / "manifest.json").read_bytes()).get("seconds")
    except (OSError, ValueError, AttributeError):
        return None
    return seconds if isinstance(seconds, (int, float)) else None
