"""Build the TensorRT plans that this GPU needs before Triton starts (``TRIREME_BUILD_ENGINES``).

The repository may be read-only, so the plans go into the cache, and Triton serves a repository there that
has the new plans and, for all else, links to the one that was given. ``/ping`` says how far it is.
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
from sm.settings import HERE, Settings

#: Seconds between two looks, between two lines of the log, and for the last callers to read their answer.
TICK, TELL, PARTING = 0.05, 30.0, 0.5


class Stopping(Exception):
    """Somebody wants the box to stop."""


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
        #: What ``/ping`` says meanwhile.
        self.reason = "the box is starting"
        self._doorman = UnavailableResponder(listener, selector, lambda: self.reason, time.monotonic)

    def run(self, repository: Path) -> Path | None:
        """The repository to serve, None if the box was told to stop; :class:`StartError` if a build fails."""
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
            self._part()
        return merged

    def _build(self, version: Path, built: Path, which: str) -> bool:
        """False if the box was told to stop."""
        name, started, told = version.parent.name, time.monotonic(), -TELL
        usual = _seconds(version)
        command = (
            sys.executable,
            "-m",
            "sm.tensorrt.rebuild",
            str(version),
            str(built),
            str(self._root / "times"),
        )
        pid, output = self._processes.spawn(Command(command, {**os.environ, "PYTHONPATH": str(HERE)}))
        if self._guard:
            self._guard.group(pid)
        try:
            while (status := self._status(pid)) is None:
                spent = time.monotonic() - started
                self.reason = progress(name, spent, usual)
                if spent - told >= TELL:
                    told = spent
                    self._log.log("info", f"{self.reason} (plan {which}, log: {built / LOG})")
                self._turn()
            if status:
                said = os.read(output, 1 << 16).decode(errors="replace").strip()
                raise StartError(said.splitlines()[-1] if said else f"{name}: its plan could not be built.")
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
        """How the process ended, None while it runs; :class:`Stopping` if the box is to stop."""
        if any(number in STOPPING for number in self._signals.take()):
            raise Stopping
        return dict(self._processes.reap()).get(pid)

    def _turn(self, wanted: bool = True) -> None:
        """Answer who asks, for a tick."""
        self._doorman.serve(wanted)
        registered = self._selector.get_map()
        for key, _ in self._selector.select(TICK):
            # An event before this one may have closed what this one is about.
            if registered.get(key.fd) is key:
                key.data()

    def _part(self) -> None:
        """The last callers get to read their answer."""
        end = time.monotonic() + PARTING
        while self._doorman.busy and time.monotonic() < end:
            self._turn(wanted=False)


def progress(model: str, spent: float, usual: float | None) -> str:
    """What ``/ping`` and the log say; ``usual`` is what the plan took when it was last built, in seconds."""
    minutes = int(spent // 60)
    if usual is None:
        return f"building {model}: {minutes} min so far"
    return f"building {model}: {minutes} of {max(minutes, 1, round(usual / 60))} min"


def _seconds(version: Path) -> float | None:
    try:
        said = json.loads((version / "manifest.json").read_bytes()).get("seconds")
    except (OSError, ValueError, AttributeError):
        return None
    return said if isinstance(said, (int, float)) else None
