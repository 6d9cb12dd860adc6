"""Batch transform against a box that is set up for it, with one worker as on serverless."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from sm.router.routes.execution_parameters import parameters
from sm.settings import Settings
from tests.support.boxes import CLIENT_FOLDERS, RunningBox, running_box
from tests.support.tritons import MODELS

LINES = "application/jsonlines"
CLIENTS = CLIENT_FOLDERS / "platform"
ROWS = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}


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


def rows(response: requests.Response) -> list[Any]:
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == LINES
    assert int(response.headers["Content-Length"]) == len(response.content)
    return [json.loads(line) for line in response.content.split(b"\n")]


def test_the_parameters_are_what_the_settings_say(box: RunningBox) -> None:
    response = requests.get(f"{box.url}/execution-parameters", timeout=5)
    assert response.json() == {
        "MaxConcurrentTransforms": 2,
        "BatchStrategy": "SINGLE_RECORD",
        "MaxPayloadInMB": 6,
    }


def test_every_line_is_answered_in_its_place(box: RunningBox) -> None:
    lines = [
        {"modelname": "probe", "payload": {"numbers": [1]}},
        {"numbers": [2]},
        {"modelname": "probe", "payload": [{"numbers": [3]}, {"numbers": [4]}]},
        {"modelname": "nobody", "payload": {}},
    ]
    body = "\n".join(json.dumps(line) for line in lines) + "\nnot JSON\n" + json.dumps({"wrong": 1}) + "\n"
    one, bare, many, unknown, garbage, wrong = rows(box.send(body.encode(), LINES))
    assert one == {"modelname": "probe", "result": [1]}
    assert bare == {"modelname": "probe", "result": [2]}
    assert many == {"modelname": "probe", "result": [[3], [4]]}
    assert (unknown["code"], garbage["code"]) == ("unknown_model", "bad_input")
    assert (wrong["code"], wrong["field"]) == ("wrong_payload", "payload.wrong")


def test_a_header_names_the_model_of_lines_that_do_not(box: RunningBox) -> None:
    body = json.dumps(ROWS).encode() + b"\n" + json.dumps(ROWS).encode()
    answers = rows(box.send(body, LINES, headers={"X-Amzn-SageMaker-Target-Model": "echo"}))
    assert [answer["outputs"][0]["data"] for answer in answers] == [[1, 2], [1, 2]]


def test_five_thousand_lines_on_two_threads_come_back_in_order(box: RunningBox) -> None:
    body = b"\n".join(b'{"numbers":[%d]}' % number for number in range(5000))
    assert [row["result"] for row in rows(box.send(body, LINES))] == [[number] for number in range(5000)]


def test_where_every_line_fails_the_status_is_the_first_ones(box: RunningBox) -> None:
    response = box.send(b'{"modelname":"nobody","payload":1}\nnot JSON', LINES)
    assert (response.status_code, response.json()["code"]) == (404, "unknown_model")
    assert box.send(b"\n", LINES).status_code == 400


def test_a_body_over_the_real_time_limit_is_taken_in_batch(box: RunningBox) -> None:
    body = b'{"numbers":[1]}\n' + b" " * (30 * 2**20)
    assert rows(box.send(body, LINES)) == [{"modelname": "probe", "result": [1]}]


def test_a_request_has_as_many_records_as_are_set(box: RunningBox) -> None:
    lines = b'{"numbers":[1]}\n' * 5000
    assert len(rows(box.send(lines, LINES))) == 5000
    response = box.send(lines + b"0\n", LINES)
    assert (response.status_code, response.json()["max_records"]) == (413, 5000)


def test_in_batch_a_request_may_take_an_hour_and_a_hundred_mebibytes() -> None:
    settings = Settings.read({"SAGEMAKER_BATCH": "true"})
    assert (settings.timeout, settings.max_body) == (3600.0, 100 * 2**20)
    assert settings.max_records == 10_000_000
    named = Settings.read(
        {"SAGEMAKER_BATCH": "true", "MODEL_SERVER_TIMEOUT": "5", "SAGEMAKER_MAX_PAYLOAD_IN_MB": "1"}
    )
    assert (named.timeout, named.max_body) == (5.0, 2**20)


def test_what_is_announced_is_no_more_than_the_platform_allows() -> None:
    wide = {"SAGEMAKER_MODEL_SERVER_WORKERS": "16"}
    assert parameters(Settings.read(wide))["MaxConcurrentTransforms"] == 16
    large = parameters(Settings.read({**wide, "SAGEMAKER_MAX_PAYLOAD_IN_MB": "50"}))
    assert (large["MaxConcurrentTransforms"], large["MaxPayloadInMB"]) == (2, 50)
    chunked = Settings.read({"SAGEMAKER_MAX_PAYLOAD_IN_MB": "0", "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "0"})
    assert (parameters(chunked)["MaxPayloadInMB"], chunked.max_body) == (0, 2**31)
    set_by_hand = {"SAGEMAKER_MAX_CONCURRENT_TRANSFORMS": "3", "SAGEMAKER_BATCH_STRATEGY": "MULTI_RECORD"}
    shown = parameters(Settings.read(set_by_hand))
    assert (shown["MaxConcurrentTransforms"], shown["BatchStrategy"]) == (3, "MULTI_RECORD")
