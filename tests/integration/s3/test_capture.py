"""A real box keeps payloads in a fake S3 or in a folder, and its callers never notice."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, wait_until
from tests.support.disks import MOUNT_SMALL_DISK, filled_disk
from tests.support.s3 import CREDENTIALS, client
from tests.support.tcp_proxy import tcp_proxy

GREET = """
from sm.client import Client, TextPayload


class Greet(Client):
    payload = TextPayload

    def inference(self, payload):
        return f"hello {payload.text}"

    def redact(self, payload, result):
        return {**payload, "payload": {"text": len(payload["payload"]["text"])}}, result["result"][:5]
"""
NAME = "Ada-whose-name-nobody-keeps"


def capturing_box(
    boxes: Boxes, place: str, command_prefix: str = "", **variables: str
) -> AbstractContextManager[RunningBox]:
    settings: Any = {
        "TRIREME_CAPTURE": place,
        "SAGEMAKER_MODEL_SERVER_WORKERS": "1",
        **CREDENTIALS,
        **variables,
    }
    return boxes.own(("echo",), ({"greet/client.py": GREET},), command_prefix=command_prefix, **settings)


def greet(box: RunningBox) -> None:
    assert box.invoke("greet", {"text": NAME}, timeout=20).json()["result"] == f"hello {NAME}"


def lines_in(s3: Any, prefix: str) -> list[dict[str, Any]]:
    objects = s3.list_objects_v2(Bucket="results", Prefix=prefix).get("Contents", ())
    bodies = [s3.get_object(Bucket="results", Key=entry["Key"])["Body"].read() for entry in objects]
    return [json.loads(line) for body in bodies for line in body.splitlines()]


def test_a_box_that_is_stopped_has_stored_every_invocation_redacted(boxes: Boxes, aws: str) -> None:
    with capturing_box(boxes, "s3://results/kept/", AWS_ENDPOINT_URL=aws) as box:
        for _ in range(50):
            greet(box)
        dashboard = requests.get(f"{box.url}/dashboard/data", params={"since": 0}, timeout=5).json()
        assert dashboard["box"]["captures"] is True
        log = box.log
        # At once after the last answer.
        box.process.terminate()
        box.process.wait(30)
    lines = lines_in(client(aws), "kept/greet/AllTraffic/20")
    assert len(lines) == 50
    for line in lines:
        sides = line["captureData"]
        assert json.loads(sides["endpointInput"]["data"])["payload"] == {"text": len(NAME)}
        assert sides["endpointOutput"]["data"] == '"hello"'
    assert NAME not in log.read_text()


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_a_missing_or_slow_s3_costs_callers_and_the_stop_nothing_and_is_counted(
    boxes: Boxes, aws: str, slow: bool
) -> None:
    with (
        tcp_proxy(aws) as proxy,
        capturing_box(boxes, "s3://no-such-bucket", AWS_ENDPOINT_URL=proxy.url) as box,
    ):
        proxy.slow_from_byte = 0 if slow else None
        for _ in range(20):
            greet(box)
        if slow:
            wait_until(lambda: proxy.connections, 30, "a connection to S3")
        else:
            box.wait_for_log("captured payloads cannot be stored")
        greet(box)
        assert box.metric("trireme_captured_total") == 0
        box.process.terminate()
        box.process.wait(30)
    assert NAME not in box.log.read_text()


@pytest.mark.exhaustive
def test_a_full_disk_costs_callers_nothing_and_what_is_held_is_stored_later(
    boxes: Boxes, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    prefix = MOUNT_SMALL_DISK.format(size=1, folder=disk)
    with capturing_box(boxes, str(disk / "kept"), command_prefix=prefix) as box:
        with filled_disk(box, disk):
            greet(box)
            box.wait_for_log("captured payloads cannot be stored: OSError")
            greet(box)
        wait_until(lambda: box.metric("trireme_captured_total") == 2, 30)
        (file,) = Path(f"/proc/{box.process.pid}/root{disk}").rglob("*.jsonl")
        assert file.read_text().count("\n") == 2
        assert NAME not in file.read_text()
