"""A box with 128 descriptors, a /tmp of 64 MiB and Docker's /dev/shm goes on when they are used up."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from sm.client.readiness import INTERVAL_S
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, wait_until
from tests.support.disks import MOUNT_SMALL_DISK, filled_disk
from tests.support.load import Load
from tests.support.tritons import ECHO_BODY

INFER, SESSION = "/v2/models/echo/infer", "X-Amzn-SageMaker-Session-Id"
LIMIT_FILES = "sh -c 'ulimit -n 128 && exec \"$@\"' sh"
#: The platform's largest body, which stays in memory, and one of a batch transform, which nginx writes to a file.
LARGE_BODY, BODY_ON_DISK = (b"[" + b" " * size + b"]" for size in (24 * 10**6, 36 * 10**6))

#: It is not ready while there is a file beside it.
SWITCHED = """
from sm.client import Client, Payload


class Switched(Client):
    payload = Payload

    def ready(self):
        return "away" if (self.folder / "away").exists() else True

    def inference(self, payload):
        return None
"""


@pytest.fixture(scope="module")
def short_path() -> Iterator[Path]:
    """A folder for TMPDIR. A Unix socket's path is limited to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def box(short_path: Path, boxes: Boxes) -> Iterator[RunningBox]:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine makes no file system of its own")
    disks = [MOUNT_SMALL_DISK.format(size=64, folder=folder) for folder in ("/dev/shm", short_path)]
    with boxes.own(
        ("echo",),
        ("platform", {"switched.py": SWITCHED}),
        command_prefix=" ".join([*disks, LIMIT_FILES]),
        TMPDIR=str(short_path),
        SAGEMAKER_MAX_PAYLOAD_IN_MB="40",
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
        SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true",
        SAGEMAKER_MODEL_SERVER_WORKERS="2",
    ) as started:
        yield started


def check_served(box: RunningBox, requests_sent: int = 1) -> None:
    assert [box.send(ECHO_BODY).status_code for _ in range(requests_sent)] == [200] * requests_sent
    assert box.ping()[0] == 200
    assert requests.get(f"{box.url}/metrics", timeout=5).status_code == 200


def test_a_body_that_does_not_fit_is_a_500_and_is_served_later(box: RunningBox, short_path: Path) -> None:
    with filled_disk(box, short_path):
        response = box.send(BODY_ON_DISK)
        assert (response.status_code, response.json()["code"]) == (500, "internal_error")
        # This one stays in memory.
        assert box.send(LARGE_BODY).json()["code"] == "bad_input"
    assert box.send(BODY_ON_DISK).status_code == 400
    check_served(box)


def test_a_process_that_dies_on_a_full_disk_is_replaced(box: RunningBox, short_path: Path) -> None:
    master, workers = box.child("data")["pid"], box.workers()
    with filled_disk(box, short_path):
        box.kill_and_wait_for_restart("nginx")
        box.wait_ready()
        os.kill(workers[0], signal.SIGKILL)
        wait_until(lambda: len(set(box.workers()) - set(workers)) == 1, description="a new worker")
        check_served(box, 40)
    assert set(workers[1:]) < set(box.workers())
    assert box.metric("trireme_invocations_total", status="200") > 0
    assert box.child("data")["pid"] == master


def test_ping_says_what_the_clients_say_while_the_disk_is_full(box: RunningBox, short_path: Path) -> None:
    away = box.folder / "clients" / "away"
    with filled_disk(box, short_path):
        for _ in range(2):
            away.touch()
            wait_until(lambda: box.ping()[0] == 503, description="a client that is not ready")
            os.kill(box.workers()[0], signal.SIGKILL)  # the next one has the space of this one
            box.wait_for_workers(2)
            time.sleep(2 * INTERVAL_S)
            assert box.ping()[0] == 503
            away.unlink()
            wait_until(lambda: box.ping()[0] == 200, description="a client that is ready again")
    check_served(box)


def test_with_128_descriptors_200_callers_lose_no_request_and_ping_answers(box: RunningBox) -> None:
    with Load(box.port, ECHO_BODY, retry_delay_s=0.2).start(200) as load:
        assert [box.ping()[0] for _ in range(20)] == [200] * 20
        wait_until(lambda: load.outcomes["200"] > 200, description="answers")
    assert set(load.outcomes) <= {"200", "429"}, load.outcomes
    check_served(box)


@pytest.mark.exhaustive
def test_a_request_that_fills_shared_memory_is_told_no_regions_name(box: RunningBox) -> None:
    """Neither the box's nor the Python backend's."""
    numbers = 6_000_000
    size = {"binary_data_size": 4 * numbers}
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, numbers], "parameters": size}
    head = json.dumps({"inputs": [tensor]}).encode()

    def send(_: int) -> requests.Response:
        body, headers = head + bytes(4 * numbers), {"Inference-Header-Content-Length": str(len(head))}
        return requests.post(box.url + INFER, data=body, headers=headers, timeout=90)

    with ThreadPoolExecutor(8) as callers:
        failed = [response for response in callers.map(send, range(16)) if response.status_code != 200]
    assert failed, "there was room for all of them"
    for response in failed:
        assert "/dev/shm" not in response.text and "trireme-" not in response.text, response.text
        assert "triton_python_backend_shm" not in response.text
    check_served(box)


def slowly_read_answer(box: RunningBox, numbers: int) -> bytes:
    """Return the model's answer to so many numbers, read so late that nginx keeps it on its disk until then."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, numbers], "data": [1.5] * numbers}
    connection = http.client.HTTPConnection("127.0.0.1", box.port, timeout=30)
    connection.sock = socket.socket()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sock.connect(("127.0.0.1", box.port))
    with contextlib.closing(connection):
        connection.request("POST", INFER, json.dumps({"inputs": [tensor]}))
        response = connection.getresponse()
        time.sleep(1)
        return response.read()


@pytest.mark.exhaustive
def test_session_values_that_fill_the_disks_are_a_507_and_hurt_nobody_else(box: RunningBox) -> None:
    def open_session() -> str:
        return box.send(b'{"requestType":"NEW_SESSION"}', headers={SESSION: "NEW_SESSION"}).headers[SESSION]

    def probe(session: str, **payload: object) -> requests.Response:
        body = json.dumps({"modelname": "probe", "payload": payload}).encode()
        return box.send(body, headers={SESSION: session})

    def store(session: str, size: int, key: str = "key") -> int:
        return probe(session, keep={key: "x" * size}).status_code

    other, workers = open_session(), box.workers()
    assert store(other, 6, "mine") == 200
    statuses: list[int] = []
    while statuses[-3:] != [507] * 3:
        assert len(statuses) < 60
        statuses.append(store(open_session(), 3_000_000))
    assert set(statuses) == {200, 507}
    # What does not fit leaves the old value as it was.
    assert store(other, 3_000_000, "mine") == 507
    assert probe(other).json()["result"]["session"] == {"mine": "xxxxxx"}
    assert len(slowly_read_answer(box, 1_000_000)) > 3_000_000
    os.kill(box.child("triton")["pid"], signal.SIGKILL)

    def triton_answers_although_more_is_stored() -> bool:
        assert {store(open_session(), 500_000) for _ in range(20)} <= {200, 507}
        return box.send(ECHO_BODY).status_code == 200

    wait_until(triton_answers_although_more_is_stored, description="Triton beside a full disk")
    assert box.workers() == workers
    assert probe(other).json()["result"]["session"] == {"mine": "xxxxxx"}
