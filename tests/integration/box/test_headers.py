"""Which request headers reach a client, which return to the caller, and which do not."""

from __future__ import annotations

import json

import pytest

from tests.support.boxes import RunningBox
from tests.support.raw_http import exchange

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
PROBE_BODY = b'{"modelname":"probe","payload":{}}'


@pytest.fixture
def box(small_box: RunningBox) -> RunningBox:
    return small_box


def test_every_header_of_the_platform_reaches_the_client(box: RunningBox) -> None:
    names = "Target-Model Target-Variant Target-Container-Hostname Inference-Id Enable-Explanations Inference-Component"
    headers = {f"X-Amzn-SageMaker-{name}": f"value of {name}" for name in names.split()}
    headers[ATTRIBUTES] = "trace=1;modelname=probe"
    assert box.send(PROBE_BODY, headers={**headers, "X-Other": "no"}).json()["result"]["headers"] == {
        name.lower(): value for name, value in headers.items()
    }


def test_a_client_can_set_the_responses_custom_attributes(box: RunningBox) -> None:
    response = box.invoke("probe", {"attributes": "took=3;tokens=17"})
    assert response.headers[ATTRIBUTES] == "took=3;tokens=17"
    for attributes in ("a\r\nSet-Cookie: b=c", "x" * 1025, "ä"):
        response = box.invoke("probe", {"attributes": attributes})
        assert (response.status_code, response.json()["code"]) == (500, "client_failed")
        assert {"Set-Cookie", ATTRIBUTES}.isdisjoint(response.headers)


def test_a_repeated_header_reaches_the_client_as_one_with_both_values(box: RunningBox) -> None:
    name = b"X-Amzn-SageMaker-Target-Variant"
    head = (
        b"POST /invocations HTTP/1.1\r\nHost: box\r\nConnection: close\r\nContent-Type: application/json\r\n"
    )
    values = b"%b: a\r\n%b: b\r\nContent-Length: %d\r\n\r\n" % (name, name, len(PROBE_BODY))
    body = json.loads(exchange(box.port, head + values + PROBE_BODY).partition(b"\r\n\r\n")[2])
    assert body["result"]["headers"][name.decode().lower()].replace(" ", "") == "a,b"
