"""``serve --demo`` on this machine: commands that it prints, commands that find it, and ``sm logs --local``."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.support import embedded_metric_format
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, free_port
from tests.support.demo_box import demo
from tests.support.sm_command import RunSm
from trireme_tools import logs

__all__ = ["demo"]
NAMES = {"fine", "refused", "unknown", "nginx-refused"}
PROBE_BODY = b'{"modelname":"probe","payload":{"numbers":[1]}}'


@pytest.fixture(scope="module")
def box(boxes: Boxes, demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    """The demo, which logs its metrics, and all lines into a file of its cache."""
    cache = tmp_path_factory.mktemp("logs")
    (cache / "repository").symlink_to(demo.parent)
    with (
        tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as run_folder,
        boxes.own(
            clients=("platform",),
            arguments="--demo",
            SAGEMAKER_MODEL_SERVER_WORKERS="1",
            SAGEMAKER_MAX_REQUEST_SIZE="1000000",
            TRIREME_CACHE=str(cache),
            TRIREME_EMF="on",
            TRIREME_ENDPOINT_NAME="ships",
            TMPDIR=run_folder,
        ) as started,
    ):
        yield started


def test_the_demo_prints_commands_that_work(box: RunningBox) -> None:
    curls = re.findall(r"^curl .*", box.wait_for_log(f"http://localhost:{box.port}/\n"), re.M)
    answers = [json.loads(subprocess.check_output(["bash", "-c", curl])) for curl in curls]
    assert [answer["modelname"] for answer in answers if "result" in answer] == [
        "bert_base",
        "resnet",
        "yolov5",
    ]


@pytest.fixture
def another(box: RunningBox, tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """The port and the file that dates the start of another box of this machine, of which the process alone runs."""
    folder, port = Path(box.environment["TMPDIR"]) / "trireme-another", free_port()
    folder.mkdir()
    with (tmp_path / "output").open("wb") as output:
        command, variables = ["sleep", "600"], {"PATH": "/bin", "SAGEMAKER_BIND_TO_PORT": str(port)}
        process = subprocess.Popen(command, env=variables, stdout=output)
    os.utime(tmp_path / "output", (1, 1))  # the newest log is shown, and this box writes none
    (folder / "supervisor.pid").write_text(str(process.pid))
    (folder / "box.json").touch()
    yield port, folder / "box.json"
    process.kill()
    process.wait()
    (folder / "supervisor.pid").unlink()


def test_commands_find_the_local_box_and_name_it_among_several(
    box: RunningBox,
    another: tuple[int, Path],
    tmp_path: Path,
    sm: RunSm,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port, started = another
    monkeypatch.setattr("tempfile.tempdir", box.environment["TMPDIR"])
    os.utime(started, (1, 1))
    box.send(PROBE_BODY)
    # The newest is taken, and the others are named.
    said = sm("logs", "--local", "-n", "1").err
    assert said.index(str(box.port)) < said.index(str(port))
    os.utime(started, (time.time() + 3600,) * 2)
    monkeypatch.setenv("SAGEMAKER_BIND_TO_PORT", str(box.port))
    (tmp_path / "request.json").write_bytes(PROBE_BODY)
    assert sm("invoke", "--json", str(tmp_path / "request.json")).status == 0


@pytest.fixture(scope="module")
def yesterdays_log(box: RunningBox) -> Path:
    """The log of a stopped box, changed so that its requests were sent yesterday."""
    for name, body in (
        ("fine", PROBE_BODY),
        ("refused", b'{"modelname":"probe","payload":{"numbers":"SECRET"}}'),
        ("unknown", b'{"modelname":"gone","payload":{}}'),
    ):
        box.send(body, headers={"X-Request-Id": name})
    box.send(b" " * 1_000_001, headers={"X-Request-Id": "nginx-refused"}, params={"key": "SECRET"})
    box.wait_for_log("nginx-refused")
    assert box.stop(signal.SIGINT) == 0
    (log_file,) = Path(box.environment["TRIREME_CACHE"], "logs").iterdir()
    lines = records(log_file)
    for line in lines:
        moment = datetime.fromisoformat(line["time"].replace("Z", "+00:00")) - timedelta(days=1)
        line["time"] = moment.isoformat(timespec="milliseconds")
    log_file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    # Newer than the output of any box that runs on this machine.
    os.utime(log_file, (time.time() + 3600,) * 2)
    return log_file


def records(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_one_command_finds_yesterdays_refused_requests(sm: RunSm, yesterdays_log: Path) -> None:
    result = sm("logs", "--local", "--file", str(yesterdays_log), "--since", "yesterday", "--status", "4xx")
    assert result.status == 0
    lines = {line.partition("request_id=")[2].split()[0]: line for line in result.out.splitlines()}
    yesterday = f"{datetime.now(timezone.utc).astimezone() - timedelta(days=1):%Y-%m-%d}"
    assert all(line.startswith(yesterday) for line in lines.values())
    codes = {name: line.partition("code=")[2].split()[0] for name, line in lines.items()}
    expected = {"refused": "wrong_payload", "unknown": "unknown_model", "nginx-refused": "too_large"}
    assert codes == expected
    assert all(line.partition("reason=")[2] for line in lines.values())


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (("--model", "probe"), {"fine", "refused"}),
        (("--code", "unknown_model"), {"unknown"}),
        (("--request-id", "nginx-refused"), {"nginx-refused"}),
        (("--slower", "0"), NAMES),
        (("--slower", "60000"), set()),
        (("--since", "1h"), set()),
    ],
)
def test_lines_can_be_filtered_by_model_code_id_and_time(
    sm: RunSm, yesterdays_log: Path, arguments: tuple[str, ...], ids: set[str]
) -> None:
    result = sm("logs", "--local", "--file", str(yesterdays_log), "--json", *arguments)
    assert result.status == (0 if result.out else 1)
    # A worker and nginx write lines of requests that follow each other in either order.
    found = [json.loads(line)["request_id"] for line in result.out.splitlines()]
    named = [name for name in found if name in NAMES]
    assert set(named) == ids
    assert len(named) == len(ids)


def test_the_output_of_other_log_commands_can_be_piped_in(
    sm: RunSm, yesterdays_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = yesterdays_log.read_text().splitlines()
    stamped_lines = "".join(f"2026-11-22T10:00:00Z stdout F {line}\n" for line in lines)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"not a line\n{{broken\n{stamped_lines}"))
    result = sm("logs", "--local", "--file", "-", "--code", "unknown_model")
    assert len(result.out.splitlines()) == 1


def test_the_box_logs_its_cloudwatch_metrics_once(yesterdays_log: Path) -> None:
    lines = [line for line in yesterdays_log.read_text().splitlines() if '"_aws"' in line]
    documents = [embedded_metric_format.read(line) for line in lines]
    kinds = {(line["Model"], line["Status"]) for line in documents}
    assert kinds >= {("-", "4xx"), ("probe", "2xx"), ("probe", "4xx")}
    assert sum(line["Requests"] for line in documents if line["Status"] == "4xx") == 2
    assert {line["Endpoint"] for line in documents} == {"ships"}


def test_following_reads_new_lines_whole_and_a_rotated_or_truncated_log(tmp_path: Path) -> None:
    file = tmp_path / "box.jsonl"
    file.write_text("one\ntw")
    file.with_name("box.jsonl.1").write_text("zero\n")
    lines = logs.read(file, follow=True)
    assert [next(lines) for _ in range(2)] == ["zero\n", "one\n"]
    with file.open("a") as stream:
        stream.write("o\nthree\n")
    assert [next(lines) for _ in range(2)] == ["two\n", "three\n"]
    file.replace(file.with_name("box.jsonl.1"))
    file.write_text("four\n")
    assert next(lines) == "four\n"
    file.write_text("5\n")
    assert next(lines) == "5\n"
    lines.close()
