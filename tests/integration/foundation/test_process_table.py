"""The process table from ``/proc``: children that run, that ended but were not waited for, and that are gone."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from sm import hardware
from tests.support.boxes import wait_until

pytestmark = pytest.mark.core


def test_a_child_of_any_thread_is_found_with_its_command_line_and_state() -> None:
    """The thread must live on: its children become those of another one when it ends."""
    mine = os.getpid()
    with ThreadPoolExecutor(1) as thread, thread.submit(subprocess.Popen, ["sleep", "600"]).result() as child:
        try:
            assert child.pid in hardware.children(mine)
            wait_until(lambda: hardware.command_line(child.pid)[:2] == ["sleep", "600"])
            state, parent, *_ = hardware.status_fields(child.pid)
            assert (state in b"SR", int(parent)) == (True, mine)
        finally:
            child.kill()
        wait_until(lambda: hardware.status_fields(child.pid)[0] == b"Z", description="its end")
        assert child.pid in hardware.children(mine)
        assert hardware.command_line(child.pid) == [""]
    assert child.pid not in hardware.children(mine)
    assert hardware.status_fields(child.pid) == []
    assert hardware.children(child.pid) == set()
    assert hardware.command_line(child.pid) == [""]
