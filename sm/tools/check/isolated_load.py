"""Load a client in a process of its own: ``python -m sm.tools.check.isolated_load``. No Triton, no network.

Prints one JSON object: ``error``, ``seconds`` of the import, ``network`` (the first address it wanted).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from sm.client.base import Triton
from sm.errors import StartError
from sm.plugins.loading import ClientSource, load
from sm.tools.check.triton_server import NoTriton

#: Seconds that an import may take, and after which nobody waits for it any more.
SLOW, PATIENCE = 3.0, 60.0
NETWORK = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg"}


def problem(found: ClientSource, seconds: float = SLOW) -> str | None:
    """What is wrong with how the client loads, in a sentence; None if nothing is."""
    command = [sys.executable, "-m", "sm.tools.check.isolated_load", found.name, str(found.file)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"slow import: it has not loaded in {PATIENCE:g} s; do the work in setup()"
    try:
        said = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return f"it ends the process it is loaded in (exit code {done.returncode})"
    if said["network"]:
        return f"network at import: it wants {said['network']}; a box may have none: bring what it needs"
    if said["error"]:
        return str(said["error"])
    if said["seconds"] > seconds:
        return (
            f"slow import: {said['seconds']:.1f} s, {seconds:g} s at most; do the work in setup(), "
            "which runs once in each worker"
        )
    return None


def watch(file: str, note: Callable[[str], None]) -> None:
    """Refuse every connection from now on, and note the first address that was wanted."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in NETWORK:
            frames = [frame for frame in traceback.extract_stack() if frame.filename == file]
            line = f" (line {frames[-1].lineno})" if frames else ""
            note(f"{_address(event, arguments)}{line}")
            raise OSError("there is no network while a client is loaded")

    sys.addaudithook(hook)


def _address(event: str, arguments: tuple[Any, ...]) -> str:
    connects = event in ("socket.connect", "socket.sendto", "socket.sendmsg")
    wanted = arguments[1] if connects else arguments[:2]
    if not isinstance(wanted, tuple):
        return str(wanted)
    parts = (part.decode(errors="replace") if isinstance(part, bytes) else str(part) for part in wanted[:2])
    return ":".join(parts)


def main(name: str, file: Path) -> None:
    """Load it, and print what was seen."""
    wanted: list[str] = []
    watch(str(file), wanted.append)
    error = ""
    began = time.perf_counter()
    try:
        load(ClientSource(name, file), cast("Triton", NoTriton()), file.parent)
    except StartError as failed:
        error = str(failed).removesuffix(".")
    seconds = time.perf_counter() - began
    found = {"error": error, "seconds": seconds, "network": wanted[0] if wanted else ""}
    sys.stdout.write(f"\n{json.dumps(found)}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
