"""``sm logs --local`` finds slow or refused requests of a real box's log, with the reason."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from sm import hardware
from sm.server.logs import SENTENCE
from tests.support import embedded_metric_format
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.other_triton import OTHER_TRITON
from tests.support.sm_command import RunSm
from trireme_tools import logs

PROBE_BODY = b'{"modelname":"probe","payload":{"numbers":[1]}}'


@pytest.fixture(scope="module")
def yesterdays_log(boxes: Boxes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a stopped box, changed so that its requests were sent yesterday."""
    folder = tmp_path_factory.mktemp("logs")
    with boxes.own(
        ("echo",),
        ("platform",),
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        SAGEMAKER_MAX_REQUEST_SIZE="100000",
        TRIREME_CACHE=str(folder),
        arguments="--demo",
        TRIREME_EMF="on",
        TRIREME_ENDPOINT_NAME="ships",
    ) as box:
        _send_requests(box)
        box.wait_for_log("nginx-refused")
    (log_file,) = (folder / "logs").iterdir()
    log_file.write_text("".join(_shift_by_a_day(log_file.read_text())))
    # Newer than the output of any box that runs on this machine.
    os.utime(log_file, (time.time() + 3600,) * 2)
    return log_file


def _send_requests(box: RunningBox) -> None:
    for name, body in (
        ("fine", PROBE_BODY),
        ("refused", b'{"modelname":"probe","payload":{"numbers":"SECRET"}}'),
        ("unknown", b'{"modelname":"gone","payload":{}}'),
    ):
        box.send(body, headers={"X-Request-Id": name})
    box.send(b" " * 100_001, headers={"X-Request-Id": "nginx-refused"}, params={"key": "SECRET"})


def _shift_by_a_day(text: str) -> Iterator[str]:
    for line in text.splitlines():
        record = json.loads(line)
        moment = datetime.fromisoformat(record["time"].replace("Z", "+00:00")) - timedelta(days=1)
        yield json.dumps({**record, "time": moment.isoformat(timespec="milliseconds")}) + "\n"


def find_lines(sm: RunSm, yesterdays_log: Path, *arguments: str) -> list[dict[str, object]]:
    result = sm("logs", "--local", "--file", str(yesterdays_log), "--json", *arguments)
    assert result.status == (0 if result.out else 1)
    return [json.loads(line) for line in result.out.splitlines()]


def test_one_command_finds_yesterdays_refused_requests_with_their_reasons(
    sm: RunSm, yesterdays_log: Path
) -> None:
    result = sm("logs", "--local", "--file", str(yesterdays_log), "--since", "yesterday", "--status", "4xx")
    assert result.status == 0
    lines = {line.partition("request_id=")[2].split()[0]: line for line in result.out.splitlines()}
    assert lines.keys() == {"refused", "unknown", "nginx-refused"}
    yesterday = f"{datetime.now(timezone.utc).astimezone() - timedelta(days=1):%Y-%m-%d}"
    assert lines["refused"].startswith(yesterday)
    assert "status=422 code=wrong_payload reason=payload.numbers: " in lines["refused"]
    assert "code=unknown_model reason=" in lines["unknown"]
    assert "code=too_large reason=" in lines["nginx-refused"]


def test_lines_can_be_filtered_by_model_code_id_and_time(sm: RunSm, yesterdays_log: Path) -> None:
    assert [line["request_id"] for line in find_lines(sm, yesterdays_log, "--model", "probe")] == [
        "fine",
        "refused",
    ]
    assert [line["request_id"] for line in find_lines(sm, yesterdays_log, "--code", "unknown_model")] == [
        "unknown"
    ]
    assert [line["process"] for line in find_lines(sm, yesterdays_log, "--request-id", "nginx-refused")] == [
        "nginx"
    ]
    assert len(find_lines(sm, yesterdays_log, "--slower", "0")) == 4
    assert find_lines(sm, yesterdays_log, "--slower", "60000") == []
    assert find_lines(sm, yesterdays_log, "--since", "1h") == []


def test_a_line_has_the_times_of_the_stages_and_never_the_content(sm: RunSm, yesterdays_log: Path) -> None:
    (line,) = find_lines(sm, yesterdays_log, "--request-id", "fine")
    stages = line["stages_ms"]
    assert isinstance(stages, dict)
    assert "decode" in stages
    assert line["bytes_in"] == len(PROBE_BODY)
    assert "SECRET" not in yesterdays_log.read_text()


def test_the_output_of_other_log_commands_can_be_piped_in(
    sm: RunSm, yesterdays_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamped_lines = "".join(
        f"2026-11-22T10:00:00Z stdout F {line}\n" for line in yesterdays_log.read_text().splitlines()
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"not a line\n{{broken\n{stamped_lines}"))
    result = sm("logs", "--local", "--file", "-", "--code", "unknown_model")
    assert len(result.out.splitlines()) == 1


def test_the_log_of_the_local_box_is_found_without_naming_it(
    sm: RunSm, yesterdays_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIREME_CACHE", str(yesterdays_log.parents[1]))
    result = sm("logs", "--local", "--status", "404")
    assert "unknown_model" in result.out
    assert str(yesterdays_log) in result.err


@pytest.mark.skipif(hardware.has_gpu(), reason="there is a GPU")
def test_a_start_without_a_gpu_logs_one_sentence_and_no_error(yesterdays_log: Path) -> None:
    lines = [json.loads(line) for line in yesterdays_log.read_text().splitlines()]
    # A Triton that was built without CUDA does not look for GPUs.
    counts = (0, 1) if OTHER_TRITON else (1,)
    assert [line["message"] for line in lines].count(SENTENCE) in counts
    complaints = [
        line for line in lines if line["level"] in ("warning", "error") and line["process"] == "triton"
    ]
    assert complaints == []
    assert not re.search("NVML|CudaDriverHelper", yesterdays_log.read_text())


def test_the_box_logs_its_cloudwatch_metrics_once(yesterdays_log: Path) -> None:
    lines = [line for line in yesterdays_log.read_text().splitlines() if '"_aws"' in line]
    documents = [embedded_metric_format.read(line) for line in lines]
    counts = {(line["Model"], line["Status"]): line["Requests"] for line in documents}
    assert counts == {("-", "4xx"): 1, ("probe", "2xx"): 1, ("probe", "4xx"): 1}
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
