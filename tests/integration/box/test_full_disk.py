"""A /tmp that is full: what needs no room is served as ever, and the box lives on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.support.boxes import RunningBox, running_box, wait_until
from tests.support.disks import SMALL, full
from tests.support.tritons import MODELS

ROWS = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}).encode()
#: The largest that the platform sends, and one of a batch transform, which nginx keeps in a file.
LARGE, LARGER = (b"[" + b" " * size + b"]" for size in (24 * 10**6, 36 * 10**6))


@pytest.fixture
def box(tmp_path: Path, short_path: Path) -> Iterator[RunningBox]:
    """A box whose run folder is on a disk of 64 MiB."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine makes no file system of its own")
    MODELS["echo"].write(tmp_path / "model" / "echo")
    through = SMALL.format(size=64, folder=short_path)
    with running_box(
        tmp_path,
        tmp_path / "model",
        clients=(),
        command_prefix=through,
        TMPDIR=str(short_path),
        SAGEMAKER_MAX_PAYLOAD_IN_MB="40",
    ) as started:
        yield started


def test_small_requests_ping_and_metrics_are_answered_as_ever(box: RunningBox, short_path: Path) -> None:
    workers = box.workers()
    with full(box, short_path):
        for _ in range(20):
            assert box.send(ROWS).status_code == 200
        assert box.send(b"{").status_code == 400
        assert box.ping()[0] == 200
        assert requests.get(f"{box.url}/metrics", timeout=5).status_code == 200
    assert box.workers() == workers


def test_a_body_for_which_there_is_no_room_is_an_error_and_served_later(
    box: RunningBox, short_path: Path
) -> None:
    with full(box, short_path):
        response = box.send(LARGER)
        assert response.status_code == 500
        assert response.json()["code"] == "internal_error"
        # This one needs none.
        assert box.send(LARGE).json()["code"] == "bad_input"
    assert box.send(LARGER).status_code == 400
    assert box.send(ROWS).status_code == 200


def test_a_process_that_dies_meanwhile_does_not_take_the_box_along(box: RunningBox, short_path: Path) -> None:
    with full(box, short_path):
        box.kill_and_wait_for_restart("nginx")
        box.wait_ready()
        assert box.send(ROWS).status_code == 200


def test_a_worker_that_dies_meanwhile_is_replaced_by_one_without_series(
    box: RunningBox, short_path: Path
) -> None:
    master, workers = box.child("data")["pid"], box.workers()
    with full(box, short_path):
        os.kill(workers[0], signal.SIGKILL)
        wait_until(lambda: len(set(box.workers()) - set(workers)) == 1, description="a new worker")
        box.wait_for_log("the series of this worker are not counted")
        for _ in range(40):
            assert box.send(ROWS).status_code == 200
        assert box.ping()[0] == 200
        assert requests.get(f"{box.url}/metrics", timeout=5).status_code == 200
    assert set(workers[1:]) < set(box.workers())
    assert box.metric("trireme_invocations_total", status="200") > 0
    assert box.child("data")["pid"] == master
