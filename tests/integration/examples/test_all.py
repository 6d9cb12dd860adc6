"""``make serve EXAMPLES=1`` serves all examples beside the demo and prints commands that work."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sm.settings import HERE, Settings
from tests.support.boxes import free_port, wait_until
from trireme_tools.prepare import example_repositories

#: By example: what its command must print.
EXPECTED_OUTPUT = {
    "bert_encode": '"embedding":[',
    "detect_segment": '"label":"cat"',
    "efficientnet_lite": '"label":"espresso"',
    "t5_translate": '"result":"Das"',
}


@pytest.mark.exhaustive
def test_all_examples_are_served_and_their_printed_commands_work(tmp_path: Path) -> None:
    repository = example_repositories.prepare(Settings.read({}))
    assert {"resnet", "yolov5", "bert_base", *EXPECTED_OUTPUT} <= {path.name for path in repository.iterdir()}
    port, log = free_port(), tmp_path / "log"
    environment = {**os.environ, "SAGEMAKER_BIND_TO_PORT": str(port)}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "serve"), "--examples"], env=environment, stdout=stream, stderr=stream
        )
    try:
        curls = wait_until(lambda: re.findall(r"^curl .*", log.read_text(), re.M), 120, "the commands")
        assert len(curls) == 3 + len(EXPECTED_OUTPUT)
        for curl in curls:
            if not any(name in curl for name in EXPECTED_OUTPUT):
                continue  # a command of the demo
            command = curl.replace(f"localhost:{port}", f"127.0.0.1:{port}")
            output = subprocess.run(
                ["bash", "-c", command], capture_output=True, text=True, check=True, timeout=120
            )
            (name,) = [name for name in EXPECTED_OUTPUT if name in command]
            assert EXPECTED_OUTPUT[name] in output.stdout.replace(" ", "")
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
