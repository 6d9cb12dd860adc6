"""The image for arm64, under emulation: it builds, starts, answers and stops.

QEMU 7.2 cannot import ONNX Runtime, so the model is one that needs none.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.boxes import wait_until
from tests.support.containers import build_image, has_image, running_container, write_team_repository

pytestmark = pytest.mark.exhaustive
#: A base image for arm64 on a machine that emulates it.
BASE = "localhost/debian-arm64:bookworm-slim"
IMAGE = "localhost/trireme:arm64"
#: Seconds: emulated code is about ten times slower.
START_TIMEOUT_S = 400


@pytest.fixture(scope="module")
def arm64_image() -> str:
    if not has_image(BASE):
        pytest.skip(f"there is no {BASE}: this machine does not emulate arm64")
    build_image(f"BASE_IMAGE={BASE}", f"IMAGE={IMAGE}", flags="--platform linux/arm64")
    return IMAGE


@pytest.mark.timeout(3600)
def test_the_arm64_image_answers_under_emulation_and_stops(arm64_image: str, tmp_path: Path) -> None:
    repository = write_team_repository(tmp_path / "model")
    flags = ("--platform", "linux/arm64")
    with running_container(arm64_image, repository, *flags, wait_until_ready=False) as box:
        wait_until(lambda: box.ping() == 200, START_TIMEOUT_S, description="/ping 200")
        assert box.python("import platform; print(platform.machine())") == "aarch64"
        assert box.send(b"four", "text/plain").json() == {"modelname": "team", "result": [4.0, 4.0, 4.0]}
        assert box.stop() == 0
