"""Load generators: programs that print one line of JSON, and the class that reads it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.tree import Use
from sm.errors import CommandError

SCRIPT = Path(__file__).with_name("wrk.lua")
#: Seconds after which an answer counts as lost: more than any queue here takes.
ANSWER_TIMEOUT_S = 120


@dataclass(frozen=True)
class Request:
    """A POST. Every answer to it must be a 200 that contains ``expected``."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    expected: bytes


#: The folder for a driver's shared memory, in files named after its process: see :mod:`bench.callers`.
SHARED = Path("/dev/shm")  # noqa: S108


def sweep(driver: int) -> None:
    """Remove a driver's shared memory, however the driver ended."""
    for region in SHARED.glob(f"bench-{driver}-*"):
        region.unlink(missing_ok=True)


@dataclass(frozen=True)
class Load:
    """The result of a load: counts and times in seconds.

    ``wrong``: another status or content than expected. ``lost``: no answer. ``processor``: the driver's
    own seconds of processor time, where it is a part of the contestant.
    """

    answers: int
    wrong: int
    lost: int
    seconds: float
    p50: float
    p90: float
    p99: float
    max: float
    processor: float = 0.0
    #: Bytes of the contestant, with and without Triton.
    memory: int = 0
    own_memory: int = 0

    @classmethod
    def read(cls, output: str) -> Load:
        """Parse the last line of a driver's output. Raises :class:`CommandError` with all of the output."""
        try:
            return cls(**json.loads(output.strip().splitlines()[-1]))
        except (ValueError, IndexError, TypeError):
            raise CommandError(f"the driver's last line is not a result:\n{output}") from None

    @classmethod
    def of(
        cls, times: Sequence[float], wrong: int, lost: int, seconds: float, processor: float = 0.0
    ) -> Load:
        """Return the load of right answers that took ``times``."""
        p50, p90, p99, most = map(float, np.percentile(times or [0.0], (50, 90, 99, 100)))
        return cls(len(times), wrong, lost, seconds, p50, p90, p99, most, processor)

    def with_use(self, processor: float, use: Use) -> Load:
        """Add seconds of processor time, and what ``use`` says of memory."""
        memory = {"memory": use.memory, "own_memory": use.own_memory}
        return replace(self, processor=self.processor + processor, **memory)

    @property
    def rate(self) -> float:
        """Right answers a second."""
        return self.answers / self.seconds


def wrk(request: Request, port: int, callers: int, seconds: float, folder: Path) -> Sequence[str]:
    """Return wrk's command line. Raises :class:`CommandError` if wrk is not installed."""
    program = shutil.which("wrk")
    if program is None:
        raise CommandError("there is no wrk, which makes the load; on Debian and Ubuntu: apt-get install wrk")
    body, expected = folder / "asked.body", folder / "asked.expected"
    body.write_bytes(request.body)
    expected.write_bytes(request.expected)
    return (
        program,
        "--threads=1",
        f"--connections={callers}",
        f"--duration={math.ceil(seconds)}s",
        f"--timeout={ANSWER_TIMEOUT_S}s",
        f"--script={SCRIPT}",
        f"http://127.0.0.1:{port}{request.path}",
        "--",
        str(body),
        str(expected),
        *(f"{name}: {value}" for name, value in request.headers.items()),
    )
