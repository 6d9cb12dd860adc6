"""The documented script takes an endpoint through its whole life."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sm.settings import HERE, Settings
from trireme_tools.prepare.demo import prepare


@pytest.mark.exhaustive
def test_the_script_creates_invokes_updates_and_deletes_an_endpoint() -> None:
    prepare(Settings.read({}))
    image = "111122223333.dkr.ecr.eu-west-1.amazonaws.com/trireme:played"
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.played_aws", "examples/endpoint-life.sh"],
        cwd=HERE,
        env={**os.environ, "IMAGE": image},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    assert output.count("equal (") == 6, output
    assert "Traceback" not in output, output[-4000:]
    for sentence in ("Egyptian cat", "capital of France", "971.52", "676.80", "again", "nothing is left"):
        assert sentence in output, output
