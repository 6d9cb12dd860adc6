"""Reserve Triton's default ports for one test of this machine at a time."""

from __future__ import annotations

import fcntl
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.support.boxes import wait_until

PORTS = (8000, 8001, 8002)
#: Seconds to wait for other tests, and for other programs that use the ports.
TURN_S, FREE_S = 300.0, 60.0


@contextmanager
def usual_ports() -> Iterator[None]:
    """Wait for the ports, and keep this machine's other tests off them until the block ends."""
    with (Path(tempfile.gettempdir()) / "trireme-tests-usual-ports").open("a") as lock:
        wait_until(lambda: _is_locked(lock), TURN_S, "the lock on ports 8000 to 8002")
        wait_until(are_free, FREE_S, "ports 8000 to 8002 to be free")
        yield


def are_free() -> bool:
    return not any(map(_is_taken, PORTS))


def _is_locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_taken(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
