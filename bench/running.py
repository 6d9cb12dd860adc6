"""Start and stop a contestant."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench import tree
from bench.contestant import Contestant
from sm.errors import CommandError

#: Seconds to be ready, and to end after SIGTERM: the box drains for 25.
READY_TIMEOUT_S, STOP_TIMEOUT_S = 120.0, 40.0
#: Seconds that processes which a contestant left behind get to end by themselves.
EXIT_GRACE_S = 2.0
#: A tree that uses less than this share of a processor is idle; seconds of each look.
MAX_IDLE_CPU_SHARE, CPU_SAMPLE_S = 0.25, 0.3


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def running(contestant: Contestant) -> Iterator[int | None]:
    """Run a contestant while the context lasts; None if there is nothing to start.

    Raises :class:`CommandError` with the end of its log if it does not become ready.
    """
    contestant.prepare()
    if not contestant.command():
        yield None
        return
    log = contestant.folder / "log"
    environment = {**os.environ, **contestant.environment()}
    with log.open("wb") as output:
        process = subprocess.Popen(
            (sys.executable, "-m", "bench.tree", *contestant.command()),
            cwd=contestant.folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_ready(contestant, process, log)
        yield process.pid
    finally:
        with tree.adopting():
            killed = stop(process)
        if killed:
            print(f"{contestant.name} left {killed} processes behind; they were killed")


def stop(process: subprocess.Popen[bytes]) -> int:
    """Send SIGTERM, then SIGKILL to what is left; return how many processes had to be killed."""
    known = tree.pids(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    until = time.monotonic() + STOP_TIMEOUT_S
    while process.poll() is None and time.monotonic() < until:
        known |= tree.pids(process.pid)
        time.sleep(0.05)
    if process.poll() is not None:
        # What it has left is ours now. Helpers of Python's multiprocessing end a moment after their parent.
        known.discard(process.pid)
        until = time.monotonic() + EXIT_GRACE_S
    while (remaining := _reap(known)) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in remaining:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    while _reap(known):
        time.sleep(0.05)
    return len(remaining)


def _reap(known: set[int]) -> set[int]:
    """Wait for dead children; return those of ``known`` that are still alive below this process."""
    for pid in known:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return known & tree.pids(os.getpid())


def wait_until_idle(root: int, seconds: float = 30.0) -> None:
    """Wait until the processes are idle: some still work on requests that their callers have given up."""
    until, before = time.monotonic() + seconds, tree.processor_seconds(root)
    while time.monotonic() < until:
        time.sleep(CPU_SAMPLE_S)
        now = tree.processor_seconds(root)
        if now - before < MAX_IDLE_CPU_SHARE * CPU_SAMPLE_S:
            return
        before = now


def _wait_ready(contestant: Contestant, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + READY_TIMEOUT_S
    while not contestant.ready():
        if process.poll() is not None or time.monotonic() > until:
            ended = f"ended with {process.returncode}" if process.returncode is not None else "is not ready"
            raise CommandError(f"{contestant.name} {ended}:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.1)
