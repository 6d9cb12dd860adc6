"""The process table from ``/proc``: children that run, that ended but were not waited for, and that are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import threading

import pytest

from sm import hardware
from tests.support.boxes import wait_until

pytestmark = pytest.mark.core


def test_a_child_of_any_thread_is_found_with_its_command_line_and_state() -> None:
    processes: list[subprocess.Popen[bytes]] = []
    release = threading.Event()

    def start_child() -> None:
        processes.append(subprocess.Popen(["sleep", "600"]))
        release.wait(30)

    thread = threading.Thread(target=start_child)
    thread.start()
    wait_until(lambda: processes, description="the child")
    child = processes[0]
    try:
        assert child.pid in hardware.children(os.getpid())
        wait_until(
            lambda: hardware.command_line(child.pid)[:2] == ["sleep", "600"],
            description="its command line",
        )
        fields = hardware.status_fields(child.pid)
        assert fields[0] in b"SR"
        assert int(fields[1]) == os.getpid()
        child.send_signal(signal.SIGKILL)
        wait_until(lambda: hardware.status_fields(child.pid)[0] == b"Z", description="its end")
        assert child.pid in hardware.children(os.getpid())
        assert hardware.command_line(child.pid) == [""]
    finally:
        child.kill()
        child.wait()
        release.set()
        thread.join()
    assert child.pid not in hardware.children(os.getpid())
    assert hardware.status_fields(child.pid) == []
    assert hardware.children(child.pid) == set()
    assert hardware.command_line(child.pid) == [""]
