"""Which request headers reach a client, which return to the caller, and which do not."""

from __future__ import annotations

import json

import pytest

from tests.support.aws import runtime_client
from tests.support.boxes import RunningBox
from tests.support.raw_http import exchange

pytestmark = pytest.mark.core

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
PROBE_BODY = b'{"modelname":"probe","payload":{}}'


@pytest.fixture
def box(small_box: RunningBox) -> RunningBox:
    return small_box


def test_every_header_of_the_platform_reaches_the_client(box: RunningBox) -> None:
    short_names = "Target-Model Target-Variant Target-Container-Hostname Inference-Id"
    names = [*short_names.split(), "Enable-Explanations", "Inference-Component"]
    headers = {f"X-Amzn-SageMaker-{name}": f"value of {name}" for name in names}
    headers[ATTRIBUTES] = "trace=1;modelname=probe"
    assert box.send(PROBE_BODY, headers={**headers, "X-Other": "no"}).json()["result"]["headers"] == {
        name.lower(): value for name, value in headers.items()
    }


def test_a_client_can_set_the_responses_custom_attributes(box: RunningBox) -> None:
    response = box.invoke("probe", {"attributes": "took=3;tokens=17"})
    assert response.headers[ATTRIBUTES] == "took=3;tokens=17"
    assert ATTRIBUTES not in box.invoke("probe", {}).headers


def test_a_real_boto3_client_sends_and_gets_custom_attributes(box: RunningBox) -> None:
    response = runtime_client(box.url).invoke_endpoint(
        EndpointName="any",
        ContentType="application/json",
        CustomAttributes="modelname=probe",
        Body=b'{"payload":{"attributes":"a=b"}}',
    )
    assert response["CustomAttributes"] == "a=b"
    assert response["InvokedProductionVariant"] == "AllTraffic"


@pytest.mark.parametrize("attributes", ["a\r\nSet-Cookie: b=c", "x" * 1025, "ä"])
def test_attributes_that_cannot_be_a_header_are_the_clients_failure(box: RunningBox, attributes: str) -> None:
    response = box.invoke("probe", {"attributes": attributes})
    assert (response.status_code, response.json()["code"]) == (500, "client_failed")
    assert "Set-Cookie" not in response.headers
    assert ATTRIBUTES not in response.headers


def test_a_repeated_header_reaches_the_client_as_one_with_both_values(box: RunningBox) -> None:
    head = (
        b"POST /invocations HTTP/1.1\r\nHost: box\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\n"
        b"X-Amzn-SageMaker-Target-Variant: a\r\nX-Amzn-SageMaker-Target-Variant: b\r\n"
        b"Content-Length: %d\r\n"
    )
    response = exchange(box.port, head % len(PROBE_BODY) + b"\r\n" + PROBE_BODY)
    body = json.loads(response.partition(b"\r\n\r\n")[2])
    assert body["result"]["headers"]["x-amzn-sagemaker-target-variant"].replace(" ", "") == "a,b"
