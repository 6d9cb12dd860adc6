"""Build the TensorRT plans that this GPU needs before Triton starts (``TRIREME_BUILD_ENGINES``).

The repository may be read-only, so plans go into the cache. Triton serves a repository there with the new
plans and links to everything else. ``/ping`` shows the progress.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

from sm.errors import StartError
from sm.repository.overlay import LOG, find_missing_plans, fits, merge, same_source
from sm.server.supervisor.log_writer import Log
from sm.server.supervisor.preparation import Preparation
from sm.settings import Settings

#: Seconds between two lines of the log.
PROGRESS_INTERVAL_S = 30.0


class PlanBuilder:
    """Builds one plan after the other, each in a process of its own."""

    def __init__(self, settings: Settings, preparation: Preparation, log: Log) -> None:
        self._root = settings.cache.expanduser().absolute() / "engines"
        self._preparation, self._log = preparation, log

    def run(self, repository: Path) -> Path:
        """Build the plans. Returns the repository to serve.

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
                else:
                    self._build(version, built, f"{number} of {len(missing)}")
        except OSError as error:
            raise StartError(
                f"plans cannot be built into {self._root} ({error.strerror}): set TRIREME_CACHE to a folder "
                "that can be written."
            ) from error
        return overlay

    def _build(self, version: Path, built: Path, position: str) -> None:
        name, started, reported_at = version.parent.name, time.monotonic(), -PROGRESS_INTERVAL_S
        last_seconds = _last_build_seconds(version)

        def report(_: str) -> None:
            nonlocal reported_at
            elapsed = time.monotonic() - started
            self._preparation.reason = progress(name, elapsed, last_seconds)
            if elapsed - reported_at >= PROGRESS_INTERVAL_S:
                reported_at = elapsed
                self._log.log("info", f"{self._preparation.reason} (plan {position}, log: {built / LOG})")

        self._preparation.run(
            ("sm.repository.plans", str(version), str(built), str(self._root / "times")), report
        )
        self._log.log("info", f"{name}: its plan was built in {time.monotonic() - started:.0f} s")


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
