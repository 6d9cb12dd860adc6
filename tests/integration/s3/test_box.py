"""A real box that reads payloads from and writes results to a fake S3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sm.settings import HERE
from tests.integration.s3.s3_client_source import CLIENT
from tests.support.boxes import RunningBox, running_box
from tests.support.s3 import CREDENTIALS, SECRET, client
from tests.support.tritons import MODELS

pytestmark = pytest.mark.core

WORDS = '''
from sm.client import StreamingClient, TextPayload


class Words(StreamingClient):
    """The words of a text."""

    payload = TextPayload

    def stream(self, payload):
        yield from payload.text.split()
'''
RESULT = "s3://results/answers/one.json"


@pytest.fixture(scope="module")
def box(aws: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    folder = tmp_path_factory.mktemp("box")
    MODELS["echo"].write(folder / "model" / "echo")
    for name, text in (("look", CLIENT), ("words", WORDS)):
        (folder / "clients" / name).mkdir(parents=True)
        (folder / "clients" / name / "client.py").write_text(text)
    variables: Any = {
        "TRIREME_S3_BUCKETS": "inputs,results/answers,nowhere",
        "SAGEMAKER_MAX_REQUEST_SIZE": "500000",
        "SAGEMAKER_MODEL_SERVER_WORKERS": "1",
        "SAGEMAKER_CONTAINER_LOG_LEVEL": "debug",
        "AWS_ENDPOINT_URL": aws,
        **CREDENTIALS,
    }
    with running_box(folder, folder / "model", clients=(folder / "clients",), **variables) as box:
        yield box


@pytest.fixture(scope="module")
def s3(aws: str) -> Any:
    cat = HERE / "clients" / "resnet" / "sample" / "cat.png"
    s3_client = client(aws)
    s3_client.put_object(Bucket="inputs", Key="cat.png", Body=cat.read_bytes())
    s3_client.put_object(Bucket="inputs", Key="large", Body=b"x" * 500_001)
    return s3_client


def read_result(s3: Any, key: str) -> Any:
    stored = s3.get_object(Bucket="results", Key=key)
    assert stored["ContentType"] == "application/json"
    return json.loads(stored["Body"].read())


def test_a_picture_is_read_from_s3_and_its_result_written_there(box: RunningBox, s3: Any) -> None:
    picture = {"image": {"s3_uri": "s3://inputs/cat.png"}}
    direct_answer = box.invoke("look", picture).json()
    assert direct_answer["result"][2] == 3
    response = box.invoke("look", picture, result_s3_uri=RESULT)
    assert response.json() == {"modelname": "look", "result_s3_uri": RESULT}
    assert read_result(s3, "answers/one.json") == direct_answer


def test_a_list_has_each_objects_result_or_its_error_in_its_place(box: RunningBox, s3: Any) -> None:
    uris = [f"s3://{key}" for key in ("inputs/cat.png", "inputs/none", "inputs/large", "others/a")]
    response = box.invoke("look", [{"s3_uri": uri} for uri in uris], result_s3_uri=RESULT)
    assert response.status_code == 200
    results = read_result(s3, "answers/one.json")["result"]
    assert [row["code"] if isinstance(row, dict) else "good" for row in results] == [
        "good",
        "not_found",
        "too_large",
        "forbidden",
    ]


def test_results_of_json_lines_go_to_s3_and_a_stream_is_refused(box: RunningBox, s3: Any) -> None:
    s3.put_object(Bucket="inputs", Key="words", Body=b"so so")
    request = {"modelname": "words", "payload": {"s3_uri": "s3://inputs/words"}, "result_s3_uri": RESULT}
    line = json.dumps(request).encode()
    response = box.send(line + b"\n" + line, "application/jsonlines")
    assert [json.loads(row)["result_s3_uri"] for row in response.text.split("\n")] == [RESULT, RESULT]
    assert read_result(s3, "answers/one.json")["result"] == ["so", "so"]
    response = box.send(line, headers={"Accept": "text/event-stream"})
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")


def test_no_credential_and_no_object_key_is_logged(box: RunningBox, s3: Any) -> None:
    box.invoke("look", {"s3_uri": "s3://inputs/cat.png"})
    box.invoke("look", {"s3_uri": "s3://inputs/none"})
    log = box.log.read_text()
    assert "invocation" in log
    assert SECRET not in log
    assert "cat.png" not in log
    assert "Authorization" not in log
