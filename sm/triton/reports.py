"""What a worker tells the supervisor: a model's process must be replaced. A line in a named pipe wakes it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: Bytes that a pipe holds, so that one read gets all lines whole.
PIPE_BYTES = 1 << 16


class Report(NamedTuple):
    """A generation of a model that a worker has ended; see :mod:`sm.triton.generation`."""

    model: str
    number: int
    #: Triton's name of the instance; empty if it is not known.
    instance: str = ""

    def send(self, pipe: Path) -> bool:
        """Write the report into the supervisor's ``pipe``. Returns False if nobody reads it.

        If the pipe is full, the supervisor has been standing still; it finds the ended generation by itself.
        """
        try:
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            # A write of up to 4,096 bytes is atomic.
            os.write(descriptor, f"{json.dumps(self)}\n".encode())
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)
        return True


def read_reports(descriptor: int) -> Iterator[Report]:
    """Yield what is in the pipe."""
    for line in os.read(descriptor, PIPE_BYTES).splitlines():
        yield Report(*json.loads(line))
