"""A real box keeps payloads in a fake S3, and its callers never notice. unit/extensions/observe/test_capture.py has a slow store."""

from __future__ import annotations

import json
from typing import Any

import requests

from tests.support.box_fixture import Boxes
from tests.support.s3 import CREDENTIALS, client

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


def lines_in(s3: Any, bucket: str, prefix: str) -> list[dict[str, Any]]:
    objects = s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", ())
    bodies = [s3.get_object(Bucket=bucket, Key=entry["Key"])["Body"].read() for entry in objects]
    return [json.loads(line) for body in bodies for line in body.splitlines()]


def test_what_a_missing_bucket_did_not_take_is_stored_redacted_before_the_stop(
    boxes: Boxes, aws: str
) -> None:
    settings: Any = {**CREDENTIALS, "AWS_ENDPOINT_URL": aws, "TRIREME_CAPTURE": "s3://late/kept/"}
    with boxes.own(
        ("echo",), ({"greet/client.py": GREET},), SAGEMAKER_MODEL_SERVER_WORKERS="1", **settings
    ) as box:

        def greet(times: int) -> None:
            for _ in range(times):
                assert box.invoke("greet", {"text": NAME}, timeout=20).json()["result"] == f"hello {NAME}"

        greet(20)
        box.wait_for_log("captured payloads cannot be stored")
        greet(20)
        assert box.metric("trireme_captured_total") == 0
        dashboard = requests.get(f"{box.url}/dashboard/data", params={"since": 0}, timeout=5).json()
        assert dashboard["box"]["captures"] is True
        client(aws).create_bucket(Bucket="late")
        greet(10)
        # At once after the last answer.
        assert box.stop() == 0
    lines = lines_in(client(aws), "late", "kept/greet/AllTraffic/20")
    assert len(lines) == 50
    for line in lines:
        sides = line["captureData"]
        assert json.loads(sides["endpointInput"]["data"])["payload"] == {"text": len(NAME)}
        assert sides["endpointOutput"]["data"] == '"hello"'
    assert NAME not in box.log.read_text()
