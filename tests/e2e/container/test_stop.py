"""``podman stop`` ends a container as the platform does: SIGTERM, and SIGKILL 30 s later."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.boxes import free_port, wait_until
from tests.support.containers import running_container
from tests.support.load import Load, dispatch_body


@pytest.mark.exhaustive
def test_a_stop_under_load_drains_and_exits_with_0(image: str, demo: Path, cat: bytes) -> None:
    # A port that Podman forwards is forwarded for a moment after the container's end, when its address is
    # nobody's: another server of the network may answer there. So the box has a port of this machine.
    port = free_port()
    flags = ("--network", "host", "-e", f"SAGEMAKER_BIND_TO_PORT={port}", "-e", "TRIREME_PRECISION=fp32")
    with running_container(image, demo, *flags) as started:
        box = replace(started, port=port)
        box.wait_ready()
        body = dispatch_body("resnet", base64.b64encode(cat).decode())
        with Load(box.port, body).start(callers=8) as load:
            wait_until(lambda: load.outcomes["200"] >= 10, description="answers under load")
            # If Podman had to kill it after 30 s, the status would not be 0.
            assert box.stop() == 0
        assert set(load.outcomes) <= {"200", "429", "503", "refused"}, load.outcomes
        assert len(load.bodies) == 1
