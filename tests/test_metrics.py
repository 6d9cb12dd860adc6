"""The series stay few, however many models come and go, and have their room on the disk from the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sm.metrics import OTHERS, ROOM, Labels, reserve


def test_the_first_names_have_series_of_their_own_and_keep_them() -> None:
    labels = Labels(2)
    assert [labels.of(name) for name in ("a", "b", "c", "a", "d", "b")] == [
        "a",
        "b",
        OTHERS,
        "a",
        OTHERS,
        "b",
    ]


def test_the_room_of_a_workers_series_is_taken_whole(tmp_path: Path) -> None:
    reserve(tmp_path, 7)
    for kind, size in ROOM.items():
        found = (tmp_path / f"{kind}_7.db").stat()
        assert found.st_size == size
        assert found.st_blocks * 512 >= size


COUNTING = """
import os
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from sm.metrics import BUCKETS, SECONDS, invocations, observe, seconds

invocations("m", 200).inc()
child = os.fork()
for value in (0.0, *BUCKETS, 61.0):
    observe(seconds("m"), value)
    SECONDS.labels("theirs").observe(value)
invocations("m", 200).inc()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_counts_are_those_of_prometheus_client_and_a_forked_process_has_its_own(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    text = subprocess.run(
        [sys.executable, "-c", COUNTING], env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert 'trireme_invocations_total{model="m",status="200"} 3.0' in text
    ours = [line for line in text.splitlines() if 'model="m"' in line and "_seconds_" in line]
    assert len(ours) == 18
    assert all(line.replace('"m"', '"theirs"') in text.splitlines() for line in ours)
