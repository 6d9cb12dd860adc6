"""Batch transform, against a box in batch mode with one worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from sm.control.routes import batch_parameters
from sm.settings import Settings
from tests.support.boxes import CLIENT_FOLDERS, RunningBox, running_box
from tests.support.tritons import MODELS

LINES = "application/jsonlines"
CLIENTS = CLIENT_FOLDERS / "platform"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    folder = tmp_path_factory.mktemp("batch")
    MODELS["echo"].write(folder / "model" / "echo")
    with running_box(
        folder,
        folder / "model",
        clients=(CLIENTS,),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="probe",
        SAGEMAKER_BATCH="true",
        SAGEMAKER_BATCH_STRATEGY="SingleRecord",
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        TRIREME_MAX_RECORDS="5000",
        TRIREME_THREADS="2",
    ) as started:
        yield started


def parse_lines(response: requests.Response) -> list[Any]:
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == LINES
    assert int(response.headers["Content-Length"]) == len(response.content)
    return [json.loads(line) for line in response.content.split(b"\n")]


def test_execution_parameters_are_those_of_the_settings(box: RunningBox) -> None:
    response = requests.get(f"{box.url}/execution-parameters", timeout=5)
    assert response.json() == {
        "MaxConcurrentTransforms": 2,
        "BatchStrategy": "SINGLE_RECORD",
        "MaxPayloadInMB": 6,
    }


def test_each_line_gets_its_result_or_error_in_its_place(box: RunningBox) -> None:
    lines = [
        {"modelname": "probe", "payload": {"numbers": [1]}},
        {"numbers": [2]},
        {"modelname": "probe", "payload": [{"numbers": [3]}, {"numbers": [4]}]},
        {"modelname": "nobody", "payload": {}},
    ]
    body = "\n".join(json.dumps(line) for line in lines) + "\nnot JSON\n" + json.dumps({"wrong": 1}) + "\n"
    single, without_model, list_of_records, unknown, not_json, wrong = parse_lines(
        box.send(body.encode(), LINES)
    )
    assert single == {"modelname": "probe", "result": [1]}
    assert without_model == {"modelname": "probe", "result": [2]}
    assert list_of_records == {"modelname": "probe", "result": [[3], [4]]}
    assert (unknown["code"], not_json["code"]) == ("unknown_model", "bad_input")
    assert (wrong["code"], wrong["field"]) == ("wrong_payload", "payload.wrong")


def test_five_thousand_lines_on_two_threads_come_back_in_order(box: RunningBox) -> None:
    body = b"\n".join(b'{"numbers":[%d]}' % number for number in range(5000))
    assert [row["result"] for row in parse_lines(box.send(body, LINES))] == [
        [number] for number in range(5000)
    ]


def test_a_body_over_the_real_time_limit_is_accepted_in_batch_mode(box: RunningBox) -> None:
    body = b'{"numbers":[1]}\n' + b" " * (30 * 2**20)
    assert parse_lines(box.send(body, LINES)) == [{"modelname": "probe", "result": [1]}]


def test_a_request_may_have_as_many_records_as_the_setting_allows(box: RunningBox) -> None:
    lines = b'{"numbers":[1]}\n' * 5000
    assert len(parse_lines(box.send(lines, LINES))) == 5000
    response = box.send(lines + b"0\n", LINES)
    assert (response.status_code, response.json()["max_records"]) == (413, 5000)


def test_in_batch_mode_a_request_may_take_an_hour_and_have_100_mebibytes() -> None:
    settings = Settings.read({"SAGEMAKER_BATCH": "true"})
    assert (settings.timeout, settings.max_body) == (3600.0, 100 * 2**20)
    assert settings.max_records == 10_000_000
    overridden = Settings.read(
        {"SAGEMAKER_BATCH": "true", "MODEL_SERVER_TIMEOUT": "5", "SAGEMAKER_MAX_PAYLOAD_IN_MB": "1"}
    )
    assert (overridden.timeout, overridden.max_body) == (5.0, 2**20)


def test_execution_parameters_stay_within_the_platforms_limits() -> None:
    sixteen_workers = {"SAGEMAKER_MODEL_SERVER_WORKERS": "16"}
    assert batch_parameters(Settings.read(sixteen_workers))["MaxConcurrentTransforms"] == 16
    with_large_payload = batch_parameters(
        Settings.read({**sixteen_workers, "SAGEMAKER_MAX_PAYLOAD_IN_MB": "50"})
    )
    assert (with_large_payload["MaxConcurrentTransforms"], with_large_payload["MaxPayloadInMB"]) == (2, 50)
    unlimited_payload = Settings.read(
        {"SAGEMAKER_MAX_PAYLOAD_IN_MB": "0", "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "0"}
    )
    assert (batch_parameters(unlimited_payload)["MaxPayloadInMB"], unlimited_payload.max_body) == (0, 2**31)
    explicit = {"SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "3", "SAGEMAKER_BATCH_STRATEGY": "MULTI_RECORD"}
    explicit_parameters = batch_parameters(Settings.read(explicit))
    assert (explicit_parameters["MaxConcurrentTransforms"], explicit_parameters["BatchStrategy"]) == (
        3,
        "MULTI_RECORD",
    )
