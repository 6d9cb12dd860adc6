"""The whole life of an endpoint, as the documented script leads it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sm.settings import HERE, Settings
from sm.tools.build.prepare import prepare


@pytest.mark.exhaustive
def test_an_endpoint_is_made_asked_changed_and_removed_and_nothing_is_left() -> None:
    prepare(Settings.read({}))
    image = "111122223333.dkr.ecr.eu-west-1.amazonaws.com/trireme:played"
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.platform", "examples/endpoint-life.sh"],
        cwd=HERE,
        env={**os.environ, "IMAGE": image},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    assert said.count("equal (") == 6, said
    assert "Traceback" not in said, said[-4000:]
    for sentence in ("Egyptian cat", "capital of France", "971.52", "676.80", "again", "nothing is left"):
        assert sentence in said, said
