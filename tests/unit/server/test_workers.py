"""A worker sends heartbeats while it loads, gives a large body the time that it needs, and ends its threads."""

from __future__ import annotations

import socket
import threading
from itertools import count
from pathlib import Path

import pytest

from sm.polling import Poll
from sm.run_state import Box
from sm.server.control_plane import ControlPlane
from sm.server.thread_worker import MIN_RATE, TimedReader
from sm.server.worker import DataPlane, keep_heartbeat
from sm.settings import Settings
from tests.support.boxes import wait_until


def test_heartbeats_are_sent_until_stopped_or_the_time_limit() -> None:
    beats = threading.Semaphore(0)
    stop = keep_heartbeat(beats.release, seconds=60, interval_s=0.01)
    keep_heartbeat(lambda: None, seconds=0.05, interval_s=0.01)
    assert all(beats.acquire(timeout=10) for _ in range(3))
    stop()
    for thread in [thread for thread in threading.enumerate() if thread.name == "heartbeat"]:
        thread.join(10)
        assert not thread.is_alive()


# tests/integration/streaming/test_error_responses.py has those that are too slow.
def test_a_large_body_may_take_as_long_as_the_minimum_rate_needs() -> None:
    seconds, (caller, server) = count(), socket.socketpair()
    with caller, server:
        reader = TimedReader(server, 10.0, lambda: float(next(seconds)))
        for _ in range(100):
            caller.sendall(bytes(MIN_RATE))
            assert len(reader.recv(MIN_RATE)) == MIN_RATE


@pytest.mark.parametrize("plane", (DataPlane, ControlPlane))
def test_a_worker_that_ends_leaves_no_thread_that_uses_the_boxs_folder(
    plane: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor removes the folder as soon as the process has ended."""
    monkeypatch.setenv("TRIREME_LISTENER", "3")
    at_exit = plane(Settings(), Box("id", tmp_path, tmp_path, 1, 2, 3, "nginx", 0)).cfg.worker_exit
    note = tmp_path / "note"
    poll = Poll("notes", 0.001, note.touch)
    poll.start()
    wait_until(note.exists)
    at_exit(None, None)
    note.unlink()
    poll.join()
    assert not note.exists()
