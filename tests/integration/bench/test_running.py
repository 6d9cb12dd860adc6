"""A benchmark counts all processes of a contestant and ends every one."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from werkzeug import Request as HttpRequest
from werkzeug import Response

from bench import driver, tree
from bench.contestant import Contestant
from bench.driver import Load, Request
from bench.running import free_port, running
from tests.support.boxes import wait_until
from tests.support.http_server import serving

#: Numbers the responses of ``unreliable``.
COUNT = itertools.count()
#: Starts an orphan that works for 0.3 s and then stays.
LEAVES_AN_ORPHAN = """
import os, subprocess, sys, time
code = "import time; end = time.process_time() + 0.3\\nwhile time.process_time() < end: pass\\ntime.sleep(600)"
if os.fork() == 0:
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    os._exit(0)
time.sleep(600)
"""


class ScriptedContestant(Contestant):
    name = about = "scripted"
    code = LEAVES_AN_ORPHAN

    def command(self) -> Sequence[str]:
        return (sys.executable, "-c", self.code)

    def ready(self) -> bool:
        return self.code == LEAVES_AN_ORPHAN


def scripted_contestant(folder: Path, code: str = LEAVES_AN_ORPHAN) -> ScriptedContestant:
    contestant = ScriptedContestant(free_port(), "instant", folder, folder)
    contestant.code = code
    return contestant


def test_orphaned_processes_are_counted_and_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(scripted_contestant(tmp_path)) as root:
        assert root
        wait_until(lambda: tree.processor_seconds(root) >= 0.3, description="the orphan's work")
        pids = tree.pids(root)
        total_memory, own_memory = tree.memory([root])
        assert total_memory == own_memory > 2**20
    assert not pids & tree.pids(os.getpid())
    assert "left 1 processes behind" in capsys.readouterr().out


def unreliable(request: HttpRequest) -> Response:
    """One response of three is right, one has other content, one another status."""
    content = request.get_data()
    kind = next(COUNT) % 3
    return Response(b"cat" if kind == 1 else b"a dog, " + content, 500 if kind == 2 else 200)


@pytest.mark.skipif(shutil.which("wrk") is None, reason="there is no wrk: apt-get install wrk")
def test_the_load_generator_checks_every_response(tmp_path: Path) -> None:
    request = Request("/", {"Content-Type": "text/plain"}, b"and\x00a bone\xff" * 1000, b"a bone")
    with serving(unreliable) as url:
        command = driver.wrk(request, int(url.rpartition(":")[2]), 1, 3.0, tmp_path)
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    load = Load.read(output)
    assert load.answers > 3
    assert abs(load.wrong - 2 * load.answers) <= 2
    assert load.lost == 0
    assert 0 < load.p50 <= load.p99 <= load.max
