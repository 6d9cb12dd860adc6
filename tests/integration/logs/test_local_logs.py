"""``sm logs --local`` with a real box: what was slow or refused yesterday is found with its reason."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from sm import hardware
from sm.server.supervisor.gpu_lines import SENTENCE
from tests.support import embedded_metric_format
from tests.support.boxes import CLIENT_FOLDERS, RunningBox, running_box
from tests.support.sm_command import RunSm
from tests.support.tritons import MODELS

ASKED = b'{"modelname":"probe","payload":{"numbers":[1]}}'


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a box that has stopped, a day after its requests."""
    folder = tmp_path_factory.mktemp("logs")
    MODELS["echo"].write(folder / "model" / "echo")
    with running_box(
        folder,
        folder / "model",
        clients=(CLIENT_FOLDERS / "platform",),
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        SAGEMAKER_MAX_REQUEST_SIZE="100000",
        TRIREME_LOG_FILE=str(folder / "kept" / "box.jsonl"),
        TRIREME_EMF="on",
        TRIREME_ENDPOINT_NAME="ships",
    ) as box:
        _ask(box)
        box.wait_for_log("nginx-refused")
    kept = folder / "kept" / "box.jsonl"
    kept.write_text("".join(_a_day_earlier(kept.read_text())))
    return kept


def _ask(box: RunningBox) -> None:
    for name, body in (
        ("fine", ASKED),
        ("refused", b'{"modelname":"probe","payload":{"numbers":"SECRET"}}'),
        ("unknown", b'{"modelname":"gone","payload":{}}'),
    ):
        box.send(body, headers={"X-Request-Id": name})
    box.send(b" " * 100_001, headers={"X-Request-Id": "nginx-refused"}, params={"key": "SECRET"})


def _a_day_earlier(text: str) -> Iterator[str]:
    for line in text.splitlines():
        record = json.loads(line)
        moment = datetime.fromisoformat(record["time"].replace("Z", "+00:00")) - timedelta(days=1)
        yield json.dumps({**record, "time": moment.isoformat(timespec="milliseconds")}) + "\n"


def found(sm: RunSm, log: Path, *words: str) -> list[dict[str, object]]:
    said = sm("logs", "--local", "--file", str(log), "--json", *words)
    assert said.status == (0 if said.out else 1)
    return [json.loads(line) for line in said.out.splitlines()]


def test_the_request_that_was_refused_yesterday_is_found_with_its_reason_in_one_command(
    sm: RunSm, log: Path
) -> None:
    said = sm("logs", "--local", "--file", str(log), "--since", "yesterday", "--status", "4xx")
    assert said.status == 0
    lines = {line.partition("request_id=")[2].split()[0]: line for line in said.out.splitlines()}
    assert lines.keys() == {"refused", "unknown", "nginx-refused"}
    yesterday = f"{datetime.now(timezone.utc).astimezone() - timedelta(days=1):%Y-%m-%d}"
    assert lines["refused"].startswith(yesterday)
    assert "status=422 code=wrong_payload reason=payload.numbers: " in lines["refused"]
    assert "code=unknown_model reason=no model 'gone'" in lines["unknown"]
    assert "code=too_large reason=the body is larger than the 100000 bytes" in lines["nginx-refused"]


def test_lines_are_chosen_by_model_code_id_and_time(sm: RunSm, log: Path) -> None:
    assert [line["request_id"] for line in found(sm, log, "--model", "probe")] == ["fine", "refused"]
    assert [line["request_id"] for line in found(sm, log, "--code", "unknown_model")] == ["unknown"]
    assert [line["process"] for line in found(sm, log, "--request-id", "nginx-refused")] == ["nginx"]
    assert len(found(sm, log, "--slower", "0")) == 4
    assert found(sm, log, "--slower", "60000") == []
    assert found(sm, log, "--since", "1h") == []


def test_a_line_says_how_long_each_part_took_and_never_what_was_sent(sm: RunSm, log: Path) -> None:
    (line,) = found(sm, log, "--request-id", "fine")
    stages = line["stages_ms"]
    assert isinstance(stages, dict)
    assert "decode" in stages
    assert line["bytes_in"] == len(ASKED)
    assert "SECRET" not in log.read_text()


def test_other_commands_output_is_read_from_standard_input(
    sm: RunSm, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_stamps = "".join(f"2026-11-22T10:00:00Z stdout F {line}\n" for line in log.read_text().splitlines())
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"not a line\n{{broken\n{with_stamps}"))
    said = sm("logs", "--local", "--file", "-", "--code", "unknown_model")
    assert len(said.out.splitlines()) == 1


def test_the_log_of_the_box_here_is_found_by_itself(
    sm: RunSm, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIREME_LOG_FILE", str(log))
    said = sm("logs", "--local", "--status", "404")
    assert "unknown_model" in said.out
    assert str(log) in said.err


@pytest.mark.skipif(hardware.has_gpu(), reason="there is a GPU")
def test_a_start_without_a_gpu_says_so_once_and_reports_no_error(log: Path) -> None:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["message"] for line in lines].count(SENTENCE) == 1
    told = [line for line in lines if line["level"] in ("warning", "error") and line["process"] == "triton"]
    assert told == []
    assert not re.search("NVML|CudaDriverHelper", log.read_text())


def test_the_box_wrote_its_metrics_for_cloudwatch_once(log: Path) -> None:
    lines = [line for line in log.read_text().splitlines() if '"_aws"' in line]
    documents = [embedded_metric_format.read(line) for line in lines]
    counted = {(line["Model"], line["Status"]): line["Requests"] for line in documents}
    assert counted == {("-", "4xx"): 1, ("probe", "2xx"): 1, ("probe", "4xx"): 1}
    assert {line["Endpoint"] for line in documents} == {"ships"}
