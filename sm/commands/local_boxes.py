"""Call a box, find those on this machine, and let callers leave one before it is stopped (``sm drain``)."""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm.errors import CommandError
from sm.run_state import running_boxes
from sm.settings import Settings


def ask(
    url: str,
    path: str,
    body: bytes | None = None,
    *,
    method: str | None = None,
    api_key: str = "",
    timeout_s: float = 60.0,
) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON of a box's answer; with ``body`` to a POST of JSON, or another method.

    Raises:
        CommandError: No box answers at ``url``.
    """
    headers = {"Content-Type": "application/json", **({"X-Api-Key": api_key} if api_key else {})}
    status, content = fetch(url, path, headers, body, method, timeout_s)
    try:
        return status, dict(json.loads(content))
    except (ValueError, TypeError):
        raise CommandError(f"{url} answers {status}, and it is not a box of Trireme.") from None


def fetch(
    url: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    method: str | None = None,
    timeout_s: float = 10.0,
) -> tuple[int, bytes]:
    """Return the status and the body of a box's answer. Raises :class:`CommandError` if there is none."""
    if not url.startswith(("http://", "https://")):
        raise CommandError(f"{url} is not an address of a box: it looks like http://localhost:8080.")
    request = urllib.request.Request(  # noqa: S310 - checked above
        url.rstrip("/") + path, body, dict(headers), method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise CommandError(f"no box answers at {url}: {reason}. Start one with: make serve") from None


@dataclass(frozen=True)
class LocalBox:
    """A running box: its settings and when it started."""

    settings: Settings
    started: float
    #: Where its standard output goes.
    output: Path

    @property
    def url(self) -> str:
        scheme = "https" if self.settings.tls_certificate else "http"
        return f"{scheme}://localhost:{self.settings.port}"

    def writes(self, log: Path) -> bool:
        """True if a file is the box's log."""
        cached = self.settings.cache.expanduser().absolute() / "logs" / f"{self.settings.port}.jsonl"
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


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--pid", type=int, metavar="N", help="the process of the box, if there are several")
    command.add_argument(
        "--seconds",
        type=float,
        default=0.0,
        metavar="S",
        help="return after S seconds, which load balancers need to see it (0)",
    )


def run(options: argparse.Namespace) -> int:
    """Make ``/ping`` 503 and end kept connections; the box serves on until it is stopped."""
    boxes = running_boxes()
    if options.pid is not None:
        boxes = {pid: folder for pid, folder in boxes.items() if pid == options.pid}
    if not boxes:
        raise CommandError("there is no such box of this user on this machine.")
    if len(boxes) > 1:
        raise CommandError(f"there are several boxes; choose one with --pid: {', '.join(map(str, boxes))}.")
    (folder,) = boxes.values()
    (folder / "draining").touch()
    time.sleep(options.seconds)
    return 0
