"""Reports of the box's processes to the supervisor about models' processes.

A worker reports a process that is in doubt; the control plane says which loads are under way.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sm.run_state import read_json, write_atomically

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
        return _write_line(pipe, json.dumps(self))


def ask_for_search(pipe: Path) -> bool:
    """Make the supervisor look for processes and loads now. Returns False if nobody reads ``pipe``."""
    return _write_line(pipe, "")


def _write_line(pipe: Path, line: str) -> bool:
    try:
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A write of up to 4,096 bytes is atomic.
        with contextlib.suppress(BlockingIOError):
            os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)
    return True


def read_reports(descriptor: int) -> Iterator[EndedGeneration]:
    """Yield the reports in the pipe."""
    for line in os.read(descriptor, PIPE_BYTES).splitlines():
        if line:
            yield EndedGeneration(*json.loads(line))


@dataclass(frozen=True)
class Load:
    """A load of models that the control plane makes Triton do."""

    id: str
    models: frozenset[str]
    #: On the boot clock.
    began: float

    def announce(self, folder: Path) -> None:
        """Write the load into the supervisor's ``folder``. If the disk is full, nobody watches the load."""
        with contextlib.suppress(OSError):
            write_atomically(folder / self.id, json.dumps([sorted(self.models), self.began]))

    @classmethod
    def read_all(cls, folder: Path) -> list[Load]:
        """Return the loads that are under way."""
        # A name with a dot is a file that is being written.
        files = (file for file in folder.iterdir() if not file.suffix)
        found = ((file.name, read_json(file, None)) for file in files)
        return [cls(name, frozenset(content[0]), content[1]) for name, content in found if content]
