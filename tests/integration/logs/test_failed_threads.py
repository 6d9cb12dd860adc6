"""A thread that fails has one line in the log."""

from __future__ import annotations

import json
import subprocess
import sys

FAIL = """
import threading
from sm.server import logs
logs.configure("info")
def fail():
    raise ValueError("Cannot invoke RPC: Channel closed!")
threads = [threading.Thread(target=fail, name=f"t{number}") for number in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_each_line_of_a_process_whose_threads_fail_is_a_record() -> None:
    done = subprocess.run([sys.executable, "-c", FAIL], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert len(lines) == 20
    assert {line["level"] for line in lines} == {"error"}
    assert all("Channel closed" in line["traceback"] for line in lines)
