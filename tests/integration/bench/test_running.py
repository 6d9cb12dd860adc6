"""A contestant leaves nothing behind, and all its processes count."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from bench import driver, tree
from bench.contestant import Contestant
from bench.driver import Load, Request
from bench.running import free_port, running
from sm.errors import StartError

#: A process that works for a while, its parent dead by then, and stays.
LEAVES_ONE = """
import os, subprocess, sys, time
code = "import time; end = time.process_time() + 0.3\\nwhile time.process_time() < end: pass\\ntime.sleep(600)"
if os.fork() == 0:
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    os._exit(0)
time.sleep(600)
"""


class Scripted(Contestant):
    name = about = "scripted"
    code = LEAVES_ONE

    def command(self) -> Sequence[str]:
        return (sys.executable, "-c", self.code)

    def ready(self) -> bool:
        return self.code == LEAVES_ONE


def scripted(folder: Path, code: str = LEAVES_ONE) -> Scripted:
    contestant = Scripted(free_port(), "instant", folder, folder)
    contestant.code = code
    return contestant


def test_orphans_count_and_are_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(scripted(tmp_path)) as root:
        assert root
        until = time.monotonic() + 10
        while tree.processor_seconds(root) < 0.3 and time.monotonic() < until:
            time.sleep(0.05)
        assert tree.processor_seconds(root) >= 0.3
        below = tree.pids(root)
        everything, own = tree.memory([root])
        assert everything == own > 2**20
    assert not below & tree.pids(os.getpid())
    assert "left 1 processes behind" in capsys.readouterr().out


def test_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(StartError, match=r"ended with 3:\nno such luck"),
        running(scripted(tmp_path, "print('no such luck'); raise SystemExit(3)")),
    ):
        pass


class Unreliable(BaseHTTPRequestHandler):
    """Of three answers one is right, one has another content, one another status."""

    protocol_version = "HTTP/1.1"
    count = 0

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        kind = Unreliable.count % 3
        Unreliable.count += 1
        answer = b"cat" if kind == 1 else b"a dog, " + content
        self.send_response(500 if kind == 2 else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.skipif(shutil.which("wrk") is None, reason="there is no wrk: apt-get install wrk")
def test_every_answer_is_checked(tmp_path: Path) -> None:
    request = Request("/", {"Content-Type": "text/plain"}, b"and\x00a bone\xff" * 1000, b"a bone")
    with ThreadingHTTPServer(("127.0.0.1", 0), Unreliable) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        command = driver.wrk(request, server.server_port, 1, 1.0, tmp_path)
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        server.shutdown()
        thread.join()
    load = Load.read(output)
    assert load.answers > 3
    assert abs(load.wrong - 2 * load.answers) <= 2
    assert load.lost == 0
    # Seconds.
    assert 0 < load.p50 <= load.p99 <= load.max < 10
