"""With a full /tmp the box goes on: requests that need no disk space are served."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, wait_until
from tests.support.disks import MOUNT_SMALL_DISK, filled_disk
from tests.support.tritons import ECHO_BODY

#: The platform's largest body, which stays in memory, and one of a batch transform, which nginx writes to a file.
LARGE_BODY, BODY_ON_DISK = (b"[" + b" " * size + b"]" for size in (24 * 10**6, 36 * 10**6))


@pytest.fixture(scope="module")
def short_path() -> Iterator[Path]:
    """A folder for TMPDIR. A Unix socket's path is limited to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def box(short_path: Path, boxes: Boxes) -> Iterator[RunningBox]:
    """A box whose run folder is on a disk of 64 MiB."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine makes no file system of its own")
    with boxes.own(
        ("echo",),
        command_prefix=MOUNT_SMALL_DISK.format(size=64, folder=short_path),
        TMPDIR=str(short_path),
        SAGEMAKER_MAX_PAYLOAD_IN_MB="40",
    ) as started:
        yield started


def test_small_requests_ping_and_metrics_are_answered_as_usual(box: RunningBox, short_path: Path) -> None:
    workers = box.workers()
    with filled_disk(box, short_path):
        for _ in range(20):
            assert box.send(ECHO_BODY).status_code == 200
        assert box.send(b"{").status_code == 400
        assert box.ping()[0] == 200
        assert requests.get(f"{box.url}/metrics", timeout=5).status_code == 200
    assert box.workers() == workers


def test_a_body_that_does_not_fit_on_the_disk_is_a_500_and_is_served_later(
    box: RunningBox, short_path: Path
) -> None:
    with filled_disk(box, short_path):
        response = box.send(BODY_ON_DISK)
        assert response.status_code == 500
        assert response.json()["code"] == "internal_error"
        # This one stays in memory.
        assert box.send(LARGE_BODY).json()["code"] == "bad_input"
    assert box.send(BODY_ON_DISK).status_code == 400
    assert box.send(ECHO_BODY).status_code == 200


def test_a_process_that_dies_on_a_full_disk_is_replaced(box: RunningBox, short_path: Path) -> None:
    with filled_disk(box, short_path):
        box.kill_and_wait_for_restart("nginx")
        box.wait_ready()
        assert box.send(ECHO_BODY).status_code == 200


def test_a_worker_that_dies_on_a_full_disk_is_replaced_by_one_without_metrics(
    box: RunningBox, short_path: Path
) -> None:
    master, workers = box.child("data")["pid"], box.workers()
    with filled_disk(box, short_path):
        os.kill(workers[0], signal.SIGKILL)
        wait_until(lambda: len(set(box.workers()) - set(workers)) == 1, description="a new worker")
        box.wait_for_log("the series of this worker are not counted")
        for _ in range(40):
            assert box.send(ECHO_BODY).status_code == 200
        assert box.ping()[0] == 200
        assert requests.get(f"{box.url}/metrics", timeout=5).status_code == 200
    assert set(workers[1:]) < set(box.workers())
    assert box.metric("trireme_invocations_total", status="200") > 0
    assert box.child("data")["pid"] == master
