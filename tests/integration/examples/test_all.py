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
        for name, expected in EXPECTED_OUTPUT.items():
            (curl,) = (each for each in curls if name in each)
            command = ["bash", "-c", curl.replace(f"localhost:{port}", f"127.0.0.1:{port}")]
            assert expected in subprocess.check_output(command, text=True, timeout=120).replace(" ", "")
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
