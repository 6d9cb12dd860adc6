"""Streams and sessions behind TLS, HTTP/2, API keys and CORS."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from h2.connection import H2Connection
from h2.events import DataReceived, StreamEnded

from tests.integration.access.locked_boxes import ORIGIN, Answer, LockedBox
from tests.integration.streaming.stalls import (
    MEMORY_BYTES,
    SHORT,
    TORRENT,
    grows_less_than,
    lost_streams,
)
from tests.support.boxes import wait_until
from tests.support.load import dispatch_body

WORDS = dispatch_body("words", "a b")
#: Routes that stream, with a body and what the stream contains.
STREAMS = [
    ("/invocations", WORDS, b'"result":"b"'),
    ("/endpoints/any/invocations-response-stream", WORDS, b"b"),
    ("/v2/models/counts/generate_stream", b'{"count":2,"seconds":0.0}', b'"number":1'),
]


@pytest.mark.parametrize(("path", "body", "part"), STREAMS)
def test_a_stream_needs_a_key_and_a_listed_origin(
    locked: LockedBox, path: str, body: bytes, part: bytes
) -> None:
    def stream(**headers: str) -> Answer:
        types = {"Content_Type": "application/json", "Accept": "text/event-stream"}
        return locked.request("POST", path, body, **types, **headers)

    assert stream().status == 401
    assert stream(x_api_key="x").status == 403
    answer = stream(x_api_key=locked.key, Origin=ORIGIN)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, ORIGIN)
    assert part in answer.body
    answer = stream(x_api_key=locked.key, Origin="https://elsewhere.example")
    assert (answer.status, "access-control-allow-origin" in answer.headers) == (200, False)


def test_a_stream_over_http_2_arrives_while_others_of_its_connection_are_unread(locked: LockedBox) -> None:
    lost = lost_streams(locked.box)
    with grows_less_than(MEMORY_BYTES, locked.box), closing(locked.connect("h2")) as connection:
        protocol = H2Connection()
        protocol.initiate_connection()

        def ask(body: dict[str, float]) -> int:
            stream: int = protocol.get_next_available_stream_id()
            headers = [
                (":method", "POST"),
                (":scheme", "https"),
                (":authority", "localhost"),
                (":path", "/v2/models/torrent/generate_stream"),
                ("content-type", "application/json"),
                ("x-api-key", locked.key),
            ]
            protocol.send_headers(stream, headers)
            protocol.send_data(stream, json.dumps(body).encode(), end_stream=True)
            connection.sendall(protocol.data_to_send())
            return stream

        for _ in range(3):
            ask(TORRENT)
        # The unread streams take the 65,535 bytes that a connection begins with.
        protocol.increment_flow_control_window(2**20)
        wanted, content, is_over = ask(SHORT), b"", False
        while not is_over:
            data = connection.recv(2**16)
            assert data, "the connection was closed"
            for event in protocol.receive_data(data):
                if isinstance(event, DataReceived) and event.stream_id == wanted:
                    content += event.data
                    protocol.acknowledge_received_data(event.flow_controlled_length, wanted)
                is_over |= isinstance(event, StreamEnded) and event.stream_id == wanted
            connection.sendall(protocol.data_to_send())
        assert b'"text":"xxxxxxxxxx"' in content
        wait_until(lambda: lost_streams(locked.box) == lost + 3, description="the streams' end")


def test_each_key_has_its_share_of_the_sessions(locked: LockedBox) -> None:
    """All callers have one address here."""

    def open_session(key: str) -> int:
        headers = {"X-Amzn-SageMaker-Session-Id": "NEW_SESSION", "x-api-key": key}
        return locked.request("POST", "/invocations", b'{"requestType":"NEW_SESSION"}', **headers).status

    assert [open_session(locked.key) for _ in range(20)] == 18 * [200] + 2 * [429]
    assert open_session(locked.other_key) == 200
