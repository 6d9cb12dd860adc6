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
from sm.repository.overlay import LOG, find_missing_plans, fits, merge, same_source
from sm.server.supervisor.log_writer import Log
from sm.server.supervisor.processes import STOPPING, Command, Processes, Signals, Watchdog
from sm.server.supervisor.unavailable_responder import UnavailableResponder
from sm.settings import PACKAGE, Settings

#: Seconds between two checks, between two lines of the log, and for the last callers to read their answer.
POLL_INTERVAL_S, PROGRESS_INTERVAL_S, CLOSE_GRACE_S = 0.05, 30.0, 0.5


class StopRequested(Exception):
    """A signal asked the box to stop."""


class PlanBuilder:
    """Builds one plan after the other, each in a process of its own."""

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        selector: BaseSelector,
        signals: Signals,
        processes: Processes,
        watchdog: Watchdog | None,
        log: Log,
    ) -> None:
        self._root = settings.cache.expanduser().absolute() / "engines"
        self._selector, self._signals, self._processes = selector, signals, processes
        self._watchdog, self._log = watchdog, log
        #: What ``/ping`` says while the plans are built.
        self.reason = "the box is starting"
        self._responder = UnavailableResponder(listener, selector, lambda: self.reason, time.monotonic)

    def run(self, repository: Path) -> Path | None:
        """Build the plans. Returns the repository to serve; None if a signal asked the box to stop.

        Raises:
            StartError: A plan could not be built, or the cache cannot be written.
        """
        missing = find_missing_plans(repository)
        if not missing:
            return repository
        try:
            overlay = self._root / hashlib.sha256(str(repository).encode()).hexdigest()[:16]
            merge(repository, overlay, missing)
            for number, version in enumerate(missing, 1):
                built = overlay / version.relative_to(repository)
                if fits(built) and same_source(version, built):
                    self._log.log("info", f"{version.parent.name}: its plan in {built} is for this GPU")
                elif not self._build(version, built, f"{number} of {len(missing)}"):
                    return None
        except OSError as error:
            raise StartError(
                f"plans cannot be built into {self._root} ({error.strerror}): set TRIREME_CACHE to a folder "
                "that can be written."
            ) from error
        finally:
            self._finish_answers()
        return overlay

    def _build(self, version: Path, built: Path, position: str) -> bool:
        """Build a plan. Returns False if a signal asked the box to stop."""
        name, started, reported_at = version.parent.name, time.monotonic(), -PROGRESS_INTERVAL_S
        last_seconds = _last_build_seconds(version)
        command = (
            sys.executable,
            "-m",
            "sm.repository.plans",
            str(version),
            str(built),
            str(self._root / "times"),
        )
        pid, output = self._processes.spawn(
            Command(command, {**os.environ, "PYTHONPATH": str(PACKAGE.parent)})
        )
        if self._watchdog:
            self._watchdog.add_group(pid)
        try:
            while (status := self._status(pid)) is None:
                elapsed = time.monotonic() - started
                self.reason = progress(name, elapsed, last_seconds)
                if elapsed - reported_at >= PROGRESS_INTERVAL_S:
                    reported_at = elapsed
                    self._log.log("info", f"{self.reason} (plan {position}, log: {built / LOG})")
                self._answer_callers()
            if status:
                text = os.read(output, 1 << 16).decode(errors="replace").strip()
                raise StartError(text.splitlines()[-1] if text else f"{name}: its plan could not be built.")
        except StopRequested:
            self._processes.kill(pid)
            return False
        finally:
            os.close(output)
            if self._watchdog:
                self._watchdog.remove_group(pid)
        self._log.log("info", f"{name}: its plan was built in {time.monotonic() - started:.0f} s")
        return True

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
