"""A real box whose payloads and results are in a fake S3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from sm.settings import HERE
from tests.support.boxes import RunningBox, running_box
from tests.support.s3 import CREDENTIALS, SECRET, client
from tests.support.s3_client_source import CLIENT
from tests.support.tritons import MODELS

WORDS = '''
from sm.client.base import StreamingClient, TextPayload


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
    with running_box(folder, folder / "model", clients=(folder / "clients",), **variables) as started:
        yield started


@pytest.fixture(scope="module")
def s3(aws: str) -> Any:
    cat = HERE / "clients" / "resnet" / "sample" / "cat.png"
    made = client(aws)
    made.put_object(Bucket="inputs", Key="cat.png", Body=cat.read_bytes())
    made.put_object(Bucket="inputs", Key="large", Body=b"x" * 500_001)
    return made


def stored(s3: Any, key: str) -> Any:
    found = s3.get_object(Bucket="results", Key=key)
    assert found["ContentType"] == "application/json"
    return json.loads(found["Body"].read())


def test_a_picture_comes_from_s3_and_its_result_goes_there(box: RunningBox, s3: Any) -> None:
    picture = {"image": {"s3_uri": "s3://inputs/cat.png"}}
    plain = box.invoke("look", picture).json()
    assert plain["result"][2] == 3
    answer = box.invoke("look", picture, result_s3_uri=RESULT)
    assert answer.json() == {"modelname": "look", "result_s3_uri": RESULT}
    assert stored(s3, "answers/one.json") == plain


def test_a_list_has_each_object_or_its_error_in_its_place(box: RunningBox, s3: Any) -> None:
    uris = [f"s3://{key}" for key in ("inputs/cat.png", "inputs/none", "inputs/large", "others/a")]
    answer = box.invoke("look", [{"s3_uri": uri} for uri in uris], result_s3_uri=RESULT)
    assert answer.status_code == 200
    found = stored(s3, "answers/one.json")["result"]
    assert [row["code"] if isinstance(row, dict) else "good" for row in found] == [
        "good",
        "not_found",
        "too_large",
        "forbidden",
    ]


@pytest.mark.parametrize(
    ("payload", "result", "status"),
    [
        ({"s3_uri": "s3://others/a"}, None, 403),
        ({"s3_uri": "s3://inputs/none"}, None, 404),
        ({"s3_uri": "s3://inputs/large"}, None, 413),
        ({"s3_uri": "cat.png"}, None, 422),
        ({"s3_uri": "s3://inputs/cat.png"}, "s3://results/one.json", 403),
        ({"s3_uri": "s3://inputs/cat.png"}, "s3://nowhere/one.json", 404),
        ({"s3_uri": "s3://inputs/cat.png"}, "one.json", 422),
        ({"s3_uri": "s3://inputs/cat.png"}, 7, 422),
    ],
)
def test_what_is_wrong_is_told_in_the_usual_shape(
    box: RunningBox, s3: Any, payload: object, result: object, status: int
) -> None:
    answer = box.invoke("look", payload, result_s3_uri=result)
    assert answer.status_code == status, answer.text
    assert answer.json().keys() >= {"error", "code", "request_id"}


def test_lines_go_to_s3_too_and_a_stream_does_not(box: RunningBox, s3: Any) -> None:
    s3.put_object(Bucket="inputs", Key="words", Body=b"so so")
    request = {"modelname": "words", "payload": {"s3_uri": "s3://inputs/words"}, "result_s3_uri": RESULT}
    line = json.dumps(request).encode()
    answer = box.send(line + b"\n" + line, "application/jsonlines")
    assert [json.loads(row)["result_s3_uri"] for row in answer.text.split("\n")] == [RESULT, RESULT]
    assert stored(s3, "answers/one.json")["result"] == ["so", "so"]
    answer = box.send(line, headers={"Accept": "text/event-stream"})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_input")


def test_the_document_says_so(box: RunningBox, s3: Any) -> None:
    document = requests.get(f"{box.url}/openapi.json", timeout=10).json()
    validate(document)
    for name, value in {
        "look.Request": {
            "modelname": "look",
            "payload": [{"image": {"s3_uri": "s3://inputs/cat.png"}}, {"s3_uri": "s3://inputs/cat.png"}],
            "result_s3_uri": RESULT,
        },
        "look.Answer": {"modelname": "look", "result_s3_uri": RESULT},
    }.items():
        OAS31Validator({"$ref": f"#/components/schemas/{name}", **document}).validate(value)


def test_no_key_is_ever_logged(box: RunningBox, s3: Any) -> None:
    box.invoke("look", {"s3_uri": "s3://inputs/cat.png"})
    box.invoke("look", {"s3_uri": "s3://inputs/none"})
    log = box.log.read_text()
    assert "invocation" in log
    assert SECRET not in log
    assert "cat.png" not in log
    assert "Authorization" not in log
