"""A worker's report to the supervisor that the process of a model is in doubt."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: Bytes that a pipe holds, so that one read gets all lines whole.
PIPE_BYTES = 1 << 16


class EndedGeneration(NamedTuple):
    """A generation of a model that a worker has ended; see :mod:`sm.model_processes.generations`."""

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
            with contextlib.suppress(BlockingIOError):
                os.write(descriptor, f"{json.dumps(self)}\n".encode())
        finally:
            os.close(descriptor)
        return True


def read_reports(descriptor: int) -> Iterator[EndedGeneration]:
    """Yield the reports in the pipe."""
    for line in os.read(descriptor, PIPE_BYTES).splitlines():
        yield EndedGeneration(*json.loads(line))
