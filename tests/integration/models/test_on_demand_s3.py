"""Models that are fetched from S3 (moto's) when requests name them: the page's commands, a fetch that fails."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import requests

from sm.settings import HERE
from tests.support.box_fixture import Boxes
from tests.support.disks import MOUNT_SMALL_DISK
from tests.support.model_archives import multiplying_model
from tests.support.multi_model_endpoint import infer, states
from tests.support.s3 import aws, s3_url, upload

__all__ = ["aws", "s3_url"]
pytestmark = pytest.mark.usefixtures("models")


@pytest.fixture
def models(s3_url: str, tmp_path: Path) -> None:
    """S3 with three models, one of them with 4 MiB of weights."""
    for factor, name in enumerate(("cats", "dogs", "large"), 1):
        multiplying_model(factor).write(tmp_path / "models" / name)
    (tmp_path / "models/large/1/weights.bin").write_bytes(bytes(4 * 2**20))
    upload(s3_url, tmp_path / "models", "models")


def test_the_commands_of_the_page_load_a_model_and_a_full_disk_costs_another_alone(
    boxes: Boxes, tmp_path: Path
) -> None:
    page = (HERE / "docs/run/models.md").read_text().partition("## Load when asked")[2]
    serve, *calls = re.search(r"```sh\n(.*?)\n```", page, re.DOTALL)[1].splitlines()  # type: ignore[index]
    assignment, *_, source = serve.split()
    name, value = assignment.split("=")
    cache = tmp_path / "cache"
    cache.mkdir()
    variables: Any = {name: value, "TRIREME_CACHE": str(cache)}
    disk = MOUNT_SMALL_DISK.format(size=2, folder=cache)
    with boxes.own(arguments=source.replace("bucket", "inputs"), command_prefix=disk, **variables) as box:
        assert states(box) == dict.fromkeys(("cats", "dogs", "large"), "unloaded")
        assert infer(box.url, "large").status_code == 503
        for call in calls:
            command = call.replace("localhost:8080", f"localhost:{box.port}")
            answer = subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout
            assert "cats" in answer
        assert states(box) == {"cats": "loaded", "dogs": "unloaded", "large": "failed"}
        assert str(cache) in requests.get(f"{box.url}/models/large", timeout=10).json()["reason"]
        assert box.metric("trireme_model_fetched_bytes_total") > 0
