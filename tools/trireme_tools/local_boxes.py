"""Find the boxes on this machine, with their settings and where their output goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sm.errors import CommandError
from sm.run_state import running_boxes
from sm.settings import Settings


@dataclass(frozen=True)
class LocalBox:
    """A running box: its settings and when it started."""

    settings: Settings
    started: float
    #: Where its standard output goes.
    output: Path

    @property
    def url(self) -> str:
        return self.settings.origin

    def writes(self, log: Path) -> bool:
        """True if a file is the box's log."""
        cached = self.settings.cache / "logs" / f"{self.settings.port}.jsonl"
        return log.absolute() in (self.output, cached)


def running() -> list[LocalBox]:
    """Return the boxes of this user, the newest first."""
    return sorted(_boxes(), key=lambda box: -box.started)


def _boxes() -> Iterator[LocalBox]:
    for pid, folder in running_boxes().items():
        process = Path("/proc") / str(pid)
        with suppress(OSError, CommandError):  # it has just ended
            variables = (line.partition("=") for line in (process / "environ").read_text().split("\0"))
            settings = Settings.read({name: value for name, _, value in variables})
            yield LocalBox(settings, (folder / "box.json").stat().st_mtime, (process / "fd/1").readlink())


def name_others(found: LocalBox | None, boxes: list[LocalBox], option: str) -> str:
    """Describe the box that was found if there are several, and how to name another."""
    if len(boxes) < 2:
        return ""
    others = ", ".join(box.url for box in boxes if box is not found)
    which = f" of the box at {found.url}" if found else ""
    return f"{which}; {'others run' if found else 'boxes run'} at {others} ({option} names another)"
