"""The commands of the README and those that ``make serve`` prints work as written."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.support.boxes import WAIT_TIMEOUT_S, RunningBox, free_port, wait_until

README = (HERE / "README.md").read_text()
CURLS = re.findall(r"^curl (?:.|\n)*?(?=\n(?:```|curl ))", README, re.M)


def run(command: list[str], port: int) -> str:
    arguments = [re.sub(r"localhost:\d+", f"127.0.0.1:{port}", word) for word in command]
    return subprocess.run(arguments, cwd=HERE, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("command", [curl for curl in CURLS if "hello" not in curl])
def test_each_curl_command_of_the_readme_works_as_written(box: RunningBox, command: str) -> None:
    assert "result" in json.loads(run(["bash", "-c", command], box.port))


def test_the_readmes_boto3_program_works_as_written(box: RunningBox) -> None:
    programs = re.findall(r"```python\n(.*?)```", README, re.S)
    (program,) = [block for block in programs if "import boto3" in block]
    assert "Egyptian" in run([sys.executable, "-c", program], box.port)


def test_the_demo_prints_three_commands_that_work_and_ends_with_ctrl_c(demo: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    environment = {**os.environ, "SAGEMAKER_BIND_TO_PORT": str(port)}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "serve"), "--demo"], env=environment, stdout=stream, stderr=stream
        )
    try:
        wait_until(lambda: f"http://localhost:{port}/\n" in log.read_text(), description="the commands")
        curls = re.findall(r"^curl .*", log.read_text(), re.M)
        answers = [json.loads(run(["bash", "-c", curl], port)) for curl in curls]
        assert [answer["modelname"] for answer in answers] == ["bert_base", "resnet", "yolov5"]
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()
