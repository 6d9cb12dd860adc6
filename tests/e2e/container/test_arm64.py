"""The image for arm64, under emulation. QEMU 7.2 cannot import ONNX Runtime, so the model needs none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.containers import build_image, has_image, running_container, write_team_repository

#: A base image for arm64 on a machine that emulates it.
BASE = "localhost/debian-arm64:bookworm-slim"
IMAGE = "localhost/trireme:arm64"
START_TIMEOUT_S = 400  # emulated code is about ten times slower


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not has_image(BASE), reason=f"there is no {BASE}: this machine does not emulate arm64")
def test_the_arm64_image_answers_under_emulation_and_stops(tmp_path: Path) -> None:
    build_image(f"BASE_IMAGE={BASE}", f"IMAGE={IMAGE}", flags="--platform linux/arm64")
    repository = write_team_repository(tmp_path / "model")
    flags = ("--platform", "linux/arm64")
    with running_container(IMAGE, repository, *flags, wait_until_ready=False) as box:
        box.wait_ready(START_TIMEOUT_S)
        assert box.python("import platform; print(platform.machine())") == "aarch64"
        assert box.send(b"four", "text/plain").json() == {"modelname": "team", "result": [4.0, 4.0, 4.0]}
        assert box.stop() == 0
