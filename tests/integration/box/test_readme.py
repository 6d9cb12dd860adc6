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


def run_command(command: str, port: int) -> dict[str, object]:
    completed = subprocess.run(
        ["bash", "-c", command.replace("localhost:8080", f"127.0.0.1:{port}")],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answer: dict[str, object] = json.loads(completed.stdout)
    return answer


@pytest.mark.parametrize("command", [curl for curl in CURLS if "hello" not in curl])
def test_each_curl_command_of_the_readme_works_as_written(box: RunningBox, command: str) -> None:
    assert "result" in run_command(command, box.port)


def test_the_readmes_boto3_program_works_as_written(box: RunningBox) -> None:
    program = next(
        block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "import boto3" in block
    )
    completed = subprocess.run(
        [sys.executable, "-c", program.replace("localhost:8080", f"127.0.0.1:{box.port}")],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "Egyptian cat" in completed.stdout


def test_the_demo_prints_three_commands_that_work_and_ends_with_ctrl_c(demo: Path, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    environment = {**os.environ, "SAGEMAKER_BIND_TO_PORT": str(port)}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "serve"), "--demo"], env=environment, stdout=stream, stderr=stream
        )
    try:
        wait_until(lambda: "The page to try it" in log.read_text(), description="the commands")
        assert f"The page to try it: http://localhost:{port}/\n" in log.read_text()
        curls = re.findall(r"^curl .*", log.read_text(), re.M)
        answers = [
            run_command(curl.replace(f"localhost:{port}", f"127.0.0.1:{port}"), port) for curl in curls
        ]
        assert [answer["modelname"] for answer in answers] == ["bert_base", "resnet", "yolov5"]
    finally:
        process.send_signal(signal.SIGINT)
        try:
            status = process.wait(WAIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
    assert status == 0
