"""``podman stop`` is the platform's end of a container: SIGTERM, and SIGKILL 30 s later."""

from __future__ import annotations

import base64
import time
from pathlib import Path

from tests.support.boxes import until
from tests.support.containers import container
from tests.support.load import Load, dispatch


def test_a_stop_under_load_drains_and_ends_with_0(image: str, demo: Path, cat: bytes) -> None:
    with container(image, demo) as box:
        load = Load(box.port, dispatch("resnet", base64.b64encode(cat).decode())).start(callers=8)
        until(lambda: load.outcomes["200"] >= 10, 30, "answers under load")
        started = time.monotonic()
        assert box.stop() == 0
        # The bound.
        assert time.monotonic() - started < 30
        load.stop()
        assert set(load.outcomes) <= {"200", "429", "503", "refused"}, load.outcomes
        assert len(load.bodies) == 1
