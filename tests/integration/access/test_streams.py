"""Streams and WebSockets behind TLS, API keys and CORS."""

from __future__ import annotations

import json

import pytest

from tests.integration.access.locked_boxes import ORIGIN, LockedBox

WORDS = json.dumps({"modelname": "words", "payload": "a b"}).encode()
NEW_SESSION = {"X-Amzn-SageMaker-Session-Id": "NEW_SESSION"}
#: Routes that stream, with a body and what the stream contains.
STREAMS = [
    ("/invocations", WORDS, b'"result":"b"'),
    ("/endpoints/any/invocations-response-stream", WORDS, b"b"),
    ("/v2/models/counts/generate_stream", b'{"count":2,"seconds":0.0}', b'"number":1'),
]


@pytest.mark.parametrize(("path", "body", "part"), STREAMS)
def test_a_stream_needs_a_key_and_names_a_listed_origin_only(
    locked: LockedBox, path: str, body: bytes, part: bytes
) -> None:
    def stream(**headers: str) -> tuple[int, dict[str, str], bytes]:
        return locked.request(
            "POST", path, body, Content_Type="application/json", Accept="text/event-stream", **headers
        )

    assert stream()[0] == 401
    assert stream(x_api_key="x")[0] == 403
    status, headers, received = stream(x_api_key=locked.key, Origin=ORIGIN)
    assert (status, headers["access-control-allow-origin"]) == (200, ORIGIN)
    assert part in received
    status, headers, received = stream(x_api_key=locked.key, Origin="https://elsewhere.example")
    assert status == 200
    assert "access-control-allow-origin" not in headers


def test_each_key_has_its_share_of_the_sessions(locked: LockedBox) -> None:
    """All callers have one address here."""

    def open_session(key: str) -> int:
        headers = {**NEW_SESSION, "x-api-key": key}
        return locked.request("POST", "/invocations", b'{"requestType":"NEW_SESSION"}', **headers)[0]

    assert [open_session(locked.key) for _ in range(20)] == 18 * [200] + 2 * [429]
    assert open_session(locked.other_key) == 200
