"""``sm drain``: say goodbye to callers before a box is stopped, as a Kubernetes pod does in ``preStop``."""

from __future__ import annotations

import argparse
import time

from sm.errors import CommandError
from sm.run_state import running_boxes


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
