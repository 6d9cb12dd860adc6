"""Faults while a model is replaced: of its source in S3 (moto's), of the disk, of the box's own processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, wait_until
from tests.support.disks import MOUNT_SMALL_DISK
from tests.support.model_archives import multiplying_model
from tests.support.multi_model_endpoint import infer
from tests.support.s3 import CREDENTIALS, aws, client
from tests.support.tcp_proxy import tcp_proxy

__all__ = ["aws"]
SOURCE = "s3://inputs/faults/"


def upload(url: str, folder: Path, factor: int, padding: int = 0, seconds: float = 0) -> None:
    """Write a version of the model ``cats`` to S3."""
    model = folder / str(factor) / "cats"
    multiplying_model(factor, seconds=seconds).write(model)
    (model / "1" / "weights.bin").write_bytes(bytes(padding) + bytes([factor]))
    for file in filter(Path.is_file, model.rglob("*")):
        client(url).upload_file(str(file), "inputs", f"faults/{file.relative_to(model.parent)}")


def push(box: RunningBox) -> requests.Response:
    return requests.post(f"{box.url}/models/cats/versions", timeout=120)


def answer(box: RunningBox) -> list[float]:
    result: list[float] = infer(box.url, "cats").json()["outputs"][0]["data"]
    return result


@pytest.mark.exhaustive
def test_whatever_fails_while_a_model_is_replaced_the_old_version_serves(
    boxes: Boxes, aws: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    upload(aws, tmp_path, 1)
    with tcp_proxy(aws) as proxy:
        variables: Any = {
            **CREDENTIALS,
            "AWS_ENDPOINT_URL": proxy.url,
            "TRIREME_CACHE": str(cache),
            "TRIREME_MODEL_POLL": "0",
            "TRIREME_DRAIN_SECONDS": "1",
        }
        disk = MOUNT_SMALL_DISK.format(size=3, folder=cache)
        with boxes.own(arguments=SOURCE, command_prefix=disk, **variables) as box:
            # A full disk.
            upload(aws, tmp_path, 2, padding=4 * 2**20)
            assert push(box).status_code == 503
            assert requests.get(f"{box.url}/models/cats", timeout=10).json()["version_error"]
            assert answer(box) == [1, 2]
            # A source that sends nothing, and the control plane, killed meanwhile.
            upload(aws, tmp_path, 3, padding=2**19)
            proxy.slow_from_byte = 2**15
            with ThreadPoolExecutor(1) as pushing:
                pushing.submit(push, box)
                wait_until(lambda: proxy.connections, description="the fetch")
                assert (box.ping()[0], answer(box)) == (200, [1, 2])
                box.kill_and_wait_for_restart("control")
            assert answer(box) == [1, 2]
            proxy.slow_from_byte = None
            wait_until(lambda: push(box).status_code == 200, description="the source back")
            assert answer(box) == [3, 6]
            # The control plane, killed while Triton loads the new version.
            upload(aws, tmp_path, 4, seconds=4)
            staged = box.run_folder() / "repository"
            with ThreadPoolExecutor(1) as pushing:
                pushing.submit(push, box)
                wait_until(lambda: len(list(staged.glob("cats*"))) > 1, description="the new version staged")
                box.kill_and_wait_for_restart("control")
            assert answer(box) == [3, 6]
            wait_until(lambda: push(box).status_code == 200, description="the new version")
            assert answer(box) == [4, 8]
            wait_until(lambda: len(list(staged.glob("cats*"))) == 1, description="one version left")
