"""Call a box, and let callers leave one on this machine before it is stopped (``sm drain``)."""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
import urllib.request
from typing import Any

from sm.errors import CommandError
from sm.run_state import running_boxes


def ask(url: str, path: str, body: bytes | None = None, **options: Any) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON of a box's answer. The arguments are those of :func:`fetch`.

    Raises:
        CommandError: No box answers at ``url``.
    """
    status, content = fetch(url, path, body, **options)
    try:
        return status, dict(json.loads(content))
    except (ValueError, TypeError):
        raise CommandError(f"{url} answers {status}, and it is not a box of Trireme.") from None


def fetch(
    url: str,
    path: str,
    body: bytes | None = None,
    *,
    method: str | None = None,
    api_key: str = "",
    timeout_s: float = 60.0,
) -> tuple[int, bytes]:
    """Return the status and the body of a box's answer: to a POST of JSON with a body, or another method.

    Raises:
        CommandError: No box answers at ``url``.
    """
    if not url.startswith(("http://", "https://")):
        raise CommandError(f"{url} is not an address of a box: it looks like http://localhost:8080.")
    headers = {"Content-Type": "application/json", **({"X-Api-Key": api_key} if api_key else {})}
    request = urllib.request.Request(url.rstrip("/") + path, body, headers, method=method)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise CommandError(f"no box answers at {url}: {reason}. Start one with: make serve") from None


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
