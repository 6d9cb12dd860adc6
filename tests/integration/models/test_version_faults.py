"""Faults while a model is replaced: of its source in S3 (moto's), of the disk, of the box's own processes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
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
VARIABLES: Any = {"TRIREME_MODEL_POLL": "0", "TRIREME_DRAIN_SECONDS": "1"}


@pytest.fixture
def s3_url(aws: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": aws}.items():
        monkeypatch.setenv(name, value)
    yield aws


def upload(url: str, folder: Path, prefix: str, factor: int, padding: int = 0, seconds: float = 0) -> str:
    """Write a version of the model ``cats`` to S3; return the address of its repository."""
    model = folder / f"{prefix}-{factor}" / "cats"
    multiplying_model(factor, seconds=seconds).write(model)
    (model / "1" / "weights.bin").write_bytes(bytes(padding) + bytes([factor]))
    for file in filter(Path.is_file, model.rglob("*")):
        client(url).upload_file(str(file), "inputs", f"{prefix}/{file.relative_to(model.parent)}")
    return f"s3://inputs/{prefix}/"


def push(box: RunningBox) -> requests.Response:
    return requests.post(f"{box.url}/models/cats/versions", timeout=120)


def answer(box: RunningBox) -> list[float]:
    result: list[float] = infer(box.url, "cats").json()["outputs"][0]["data"]
    return result


@pytest.mark.exhaustive
def test_a_source_that_dies_in_the_middle_leaves_the_old_version_serving(
    boxes: Boxes, s3_url: str, tmp_path: Path
) -> None:
    source = upload(s3_url, tmp_path, "dying", 1)
    with tcp_proxy(s3_url) as proxy:
        variables: Any = {
            **VARIABLES,
            "AWS_ENDPOINT_URL": proxy.url,
            "TRIREME_CACHE": str(tmp_path / "cache"),
        }
        with boxes.own(arguments=source, **variables) as box:
            assert answer(box) == [1, 2]
            upload(s3_url, tmp_path, "dying", 2, padding=2**20)
            proxy.slow_from_byte = 2**15
            pushing = threading.Thread(target=push, args=(box,))
            pushing.start()
            time.sleep(2)
            assert answer(box) == [1, 2]
            box.kill_and_wait_for_restart("control")
            pushing.join()
            assert answer(box) == [1, 2]
            proxy.slow_from_byte = None
            wait_until(lambda: push(box).status_code == 200, description="the source back")
            assert answer(box) == [2, 4]


@pytest.mark.exhaustive
def test_a_full_disk_leaves_the_old_version_serving(boxes: Boxes, s3_url: str, tmp_path: Path) -> None:
    source, cache = upload(s3_url, tmp_path, "full", 1), tmp_path / "cache"
    cache.mkdir()
    prefix = MOUNT_SMALL_DISK.format(size=2, folder=cache)
    variables: Any = {**VARIABLES, "TRIREME_CACHE": str(cache), "command_prefix": prefix}
    with boxes.own(arguments=source, **variables) as box:
        upload(s3_url, tmp_path, "full", 2, padding=4 * 2**20)
        assert push(box).status_code == 503
        assert requests.get(f"{box.url}/models/cats", timeout=10).json()["version_error"]
        assert answer(box) == [1, 2]


@pytest.mark.exhaustive
def test_a_box_that_is_killed_in_the_middle_starts_with_the_new_version(
    boxes: Boxes, s3_url: str, tmp_path: Path
) -> None:
    source = upload(s3_url, tmp_path, "killed", 1)
    variables: Any = {**VARIABLES, "TRIREME_CACHE": str(tmp_path / "cache")}
    with boxes.own(arguments=source, **variables) as box:
        upload(s3_url, tmp_path, "killed", 2, seconds=3)
        with pytest.raises(requests.ConnectionError):
            pushing = threading.Timer(2, lambda: box.stop(signal.SIGKILL))
            pushing.start()
            push(box)
        pushing.join()
    with boxes.own(arguments=source, **variables) as again:
        assert answer(again) == [2, 4]


@pytest.mark.exhaustive
def test_the_control_plane_killed_in_the_middle_leaves_the_old_version_serving(
    boxes: Boxes, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    multiplying_model(1).write(repository / "cats")
    with boxes.own(repository, **VARIABLES) as box:
        multiplying_model(2, seconds=4).write(tmp_path / "new")
        (repository / "cats").rename(tmp_path / "old")
        (tmp_path / "new").rename(repository / "cats")
        pushing = threading.Thread(target=push, args=(box,))
        pushing.start()
        staged = box.run_folder() / "repository"
        wait_until(lambda: list(staged.glob("cats-*")), description="the new version staged")
        box.kill_and_wait_for_restart("control")
        pushing.join()
        assert answer(box) == [1, 2]
        wait_until(lambda: push(box).status_code == 200, description="the new version")
        assert answer(box) == [2, 4]
        wait_until(lambda: len(list(staged.glob("cats*"))) == 1, description="one version left")


@pytest.mark.exhaustive
def test_pushes_that_wait_for_a_source_leave_threads_for_ping_and_the_pages(
    boxes: Boxes, s3_url: str, tmp_path: Path
) -> None:
    source = upload(s3_url, tmp_path, "waiting", 1)
    with tcp_proxy(s3_url) as proxy:
        variables: Any = {
            **VARIABLES,
            "AWS_ENDPOINT_URL": proxy.url,
            "TRIREME_CACHE": str(tmp_path / "cache"),
        }
        with boxes.own(arguments=source, **variables) as box:
            upload(s3_url, tmp_path, "waiting", 2, padding=2**20)
            proxy.slow_from_byte = 2**15
            with ThreadPoolExecutor(12) as pushing:
                pushes = [pushing.submit(push, box) for _ in range(12)]
                wait_until(lambda: proxy.connections, description="the fetch")
                time.sleep(1)
                assert not all(push.done() for push in pushes)
                for path in ("/ping", "/", "/execution-parameters", "/ping"):
                    # The platform waits 2 s for /ping; nginx gives up after 1.5 s.
                    assert requests.get(f"{box.url}{path}", timeout=10).status_code == 200, path
                box.kill_and_wait_for_restart("control")
