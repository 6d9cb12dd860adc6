"""Models that are fetched from S3 (moto's) when requests name them: two boxes, a fetch that fails."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import requests

from sm.settings import HERE
from tests.support.box_fixture import Boxes
from tests.support.disks import MOUNT_SMALL_DISK
from tests.support.model_archives import multiplying_model
from tests.support.multi_model_endpoint import infer, states
from tests.support.s3 import CREDENTIALS, aws, client

__all__ = ["aws"]
SOURCE = "s3://inputs/models/"


@pytest.fixture
def s3_url(aws: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """S3 with three models, one of them with 4 MiB of weights."""
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": aws}.items():
        monkeypatch.setenv(name, value)
    for factor, name in enumerate(("cats", "dogs", "large"), 1):
        multiplying_model(factor).write(tmp_path / "models" / name)
    (tmp_path / "models/large/1/weights.bin").write_bytes(bytes(4 * 2**20))
    for file in filter(Path.is_file, (tmp_path / "models").rglob("*")):
        client(aws).upload_file(str(file), "inputs", str(file.relative_to(tmp_path)))
    yield aws


@pytest.mark.exhaustive
def test_the_commands_of_the_page_work_and_two_boxes_share_what_was_fetched(
    boxes: Boxes, s3_url: str, tmp_path: Path
) -> None:
    page = (HERE / "docs/run/models.md").read_text().partition("## Load when asked")[2]
    serve, *calls = re.search(r"```sh\n(.*?)\n```", page, re.DOTALL)[1].splitlines()  # type: ignore[index]
    assignment, *_, source = serve.split()
    name, value = assignment.split("=")
    variables: Any = {name: value, "TRIREME_CACHE": str(tmp_path / "cache")}
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(boxes.own(arguments=source.replace("bucket", "inputs"), **variables))
            for _ in range(2)
        )
        assert states(first) == dict.fromkeys(("cats", "dogs", "large"), "unloaded")
        for call in calls:
            command = call.replace("localhost:8080", f"localhost:{first.port}")
            answer = subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout
            assert "cats" in answer
        assert states(first)["cats"] == "loaded"
        assert first.metric("trireme_model_fetched_bytes_total") > 0
        assert infer(second.url, "cats").json()["outputs"][0]["data"] == [1, 2]
        assert second.metric("trireme_model_fetched_bytes_total") == 0


def test_a_full_disk_costs_the_model_that_does_not_fit_alone(
    boxes: Boxes, s3_url: str, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    with boxes.own(
        command_prefix=MOUNT_SMALL_DISK.format(size=2, folder=cache),
        arguments=SOURCE,
        TRIREME_MODELS="on-demand",
        TRIREME_CACHE=str(cache),
    ) as box:
        assert infer(box.url, "large").status_code == 503
        assert infer(box.url, "cats").status_code == 200
        assert states(box) == {"cats": "loaded", "dogs": "unloaded", "large": "failed"}
        assert requests.get(f"{box.url}/models/large", timeout=10).json()["reason"]
