"""Load a client in its own process: ``python -m trireme_tools.check.isolated_load``. No Triton, no network.

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
from sm.commands.client_loading import NoTriton
from sm.errors import CommandError
from sm.plugins.loading import load
from sm.plugins.sources import ClientSource

#: Seconds of an import that is reported as slow, and after which it is ended.
SLOW_IMPORT_S, IMPORT_TIMEOUT_S = 3.0, 60.0
NETWORK = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg"}


def find_problem(source: ClientSource, seconds: float = SLOW_IMPORT_S) -> str | None:
    """Describe what is wrong with loading the client; None if nothing is."""
    command = [sys.executable, "-m", "trireme_tools.check.isolated_load", source.name, str(source.file)]
    command.append(source.kind)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"slow import: it has not loaded in {IMPORT_TIMEOUT_S:g} s; do the work in setup()"
    try:
        outcome = json.loads(process.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return f"it ends the process it is loaded in (exit code {process.returncode})"
    if outcome["network"]:
        return f"network at import: it wants {outcome['network']}; a box may have none: bring what it needs"
    if outcome["error"]:
        return str(outcome["error"])
    if outcome["seconds"] > seconds:
        return (
            f"slow import: {outcome['seconds']:.1f} s, {seconds:g} s at most; do the work in setup(), "
            "which runs once in each worker"
        )
    return None


def block_network(file: str, note: Callable[[str], None]) -> None:
    """Refuse every connection from now on, and record the first address."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in NETWORK:
            frames = [frame for frame in traceback.extract_stack() if frame.filename == file]
            line = f" (line {frames[-1].lineno})" if frames else ""
            note(f"{_address(event, arguments)}{line}")
            raise OSError("there is no network while a client is loaded")

    sys.addaudithook(hook)


def _address(event: str, arguments: tuple[Any, ...]) -> str:
    connects = event in ("socket.connect", "socket.sendto", "socket.sendmsg")
    address = arguments[1] if connects else arguments[:2]
    if not isinstance(address, tuple):
        return str(address)
    parts = (part.decode(errors="replace") if isinstance(part, bytes) else str(part) for part in address[:2])
    return ":".join(parts)


def main(name: str, file: Path, kind: str) -> None:
    """Load the client, and print what happened."""
    addresses: list[str] = []
    block_network(str(file), addresses.append)
    error = ""
    began = time.perf_counter()
    try:
        load(ClientSource(name, file, kind), cast("Triton", NoTriton()), file.parent)
    except CommandError as failed:
        error = str(failed).removesuffix(".")
    seconds = time.perf_counter() - began
    outcome = {"error": error, "seconds": seconds, "network": addresses[0] if addresses else ""}
    sys.stdout.write(f"\n{json.dumps(outcome)}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
