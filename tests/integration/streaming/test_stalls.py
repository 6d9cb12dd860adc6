"""Callers who take a stream slowly or not at all hold neither memory, nor their model, nor the stop of the box."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import requests
from h2.connection import H2Connection
from h2.events import DataReceived, StreamEnded
from h2.exceptions import ProtocolError

from sm.triton.answer_guard import MAX_GROWTH_BYTES
from tests.support import certificates
from tests.support.boxes import RunningBox, free_port, retry_until_ok, wait_until
from tests.support.faults import streams
from tests.support.multi_model_endpoint import running_endpoint
from tests.support.streaming_box import StartBox
from tests.support.tritons import MODELS


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> StartBox:
    return streams.stalling_box(tmp_path_factory.mktemp("stalls"))


@pytest.fixture(scope="module")
def box(start: StartBox) -> Iterator[RunningBox]:
    with start(TRIREME_THREADS=str(streams.THREADS)) as started:
        yield started


@pytest.mark.parametrize("direct", [False, True], ids=["client", "triton's own"])
def test_an_unread_stream_ends_and_costs_little_memory(box: RunningBox, direct: bool) -> None:
    with streams.peak_of(partial(streams.box_bytes, box)) as memory:
        streams.read_nothing(box, direct)
    assert memory[-1] - memory[0] < streams.MEMORY_BYTES
    streams.wait_until_idle(box)
    assert '"code":"stream_stalled"' in box.log.read_text().replace(" ", "")


def test_callers_who_read_nothing_give_their_models_slots_back(box: RunningBox) -> None:
    streams.hold_all_slots(box)


def test_a_stop_does_not_wait_for_callers_who_read_nothing(start: StartBox) -> None:
    with start() as box, ExitStack() as stack:
        for direct in (False, True, False, True):
            stack.enter_context(streams.ask(box, direct=direct))
        box.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert box.process.wait(60) == 0
        # The drain time alone is 25 s.
        assert time.monotonic() - began < 20


def test_an_unload_does_not_wait_for_the_end_of_an_unread_stream(tmp_path: Path) -> None:
    with running_endpoint(tmp_path, TRIREME_STREAM_STALL_SECONDS=str(streams.STALL_S)) as endpoint:
        url = endpoint.platform.write_flat("torrent", MODELS["torrent"])
        endpoint.load_successfully("torrent", url)
        with streams.ask(endpoint.box, seconds=60.0, direct=True):
            began = time.monotonic()
            assert endpoint.unload("torrent").status_code == 200
            assert time.monotonic() - began < 25
        assert endpoint.names() == []


def test_a_slow_reader_gets_the_error_as_the_last_event(box: RunningBox) -> None:
    streams.read_slowly(box)


@pytest.mark.parametrize("direct", [False, True], ids=["client", "triton's own"])
def test_a_model_that_ignores_the_end_of_its_stream_is_loaded_again(start: StartBox, direct: bool) -> None:
    """Triton keeps what the model sends after that. Its memory grows by some hundred MB a second.

    Triton 2.51 may itself end as the model's process is killed, if that held a lock just then; it is back in seconds.
    """
    with start() as box:
        hangs = partial(box.metric, "trireme_model_hangs_total", model="stubborn")
        with streams.peak_of(partial(streams.box_bytes, box)) as memory:
            streams.ask(box, seconds=20.0, model="stubborn", direct=direct).close()
            wait_until(lambda: hangs() == 1, 20.0, description="the end of the model's process")
        assert memory[-1] - memory[0] < 2 * MAX_GROWTH_BYTES

        body = {"seconds": 0.1, "size": 10}
        url = f"{box.url}/v2/models/stubborn/generate_stream"
        retry_until_ok(lambda: requests.post(url, json=body, timeout=30))


@dataclass
class Http2:
    """A connection over TLS that asks for streams and grants no more data than HTTP/2 begins with."""

    socket: ssl.SSLSocket
    protocol: H2Connection = field(default_factory=H2Connection)

    def ask(self, model: str, body: Mapping[str, object]) -> int:
        stream = self.protocol.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", f"/v2/models/{model}/generate_stream"),
            ("content-type", "application/json"),
        ]
        self.protocol.send_headers(stream, headers)
        self.protocol.send_data(stream, json.dumps(body).encode(), end_stream=True)
        self.flush()
        return stream

    def flush(self) -> None:
        self.socket.sendall(self.protocol.data_to_send())

    def read(self, stream: int) -> bytes:
        """Read one stream to its end, and nothing of the others."""
        content = b""
        while data := self.socket.recv(2**16):
            for event in self.protocol.receive_data(data):
                if isinstance(event, DataReceived) and event.stream_id == stream:
                    content += event.data
                    self.protocol.acknowledge_received_data(event.flow_controlled_length, stream)
                elif isinstance(event, StreamEnded) and event.stream_id == stream:
                    return content
            self.flush()
        raise AssertionError("the connection was closed")


@pytest.fixture(scope="module")
def tls_box(start: StartBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBox, int]]:
    """A box with TLS and HTTP/2, and its port."""
    certificate, key = certificates.write(tmp_path_factory.mktemp("tls"))
    port = free_port()
    with start(
        TRIREME_THREADS=str(streams.THREADS),
        TRIREME_TLS_CERTIFICATE=str(certificate),
        TRIREME_TLS_KEY=str(key),
        TRIREME_TLS_PORT=str(port),
        TRIREME_HTTP2="true",
    ) as started:
        yield started, port


def connect(port: int, protocol: str) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    secured = context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=60))
    assert secured.selected_alpn_protocol() == protocol
    return secured


@contextmanager
def http2(port: int) -> Iterator[Http2]:
    with connect(port, "h2") as secured:
        connection = Http2(secured)
        connection.protocol.initiate_connection()
        connection.flush()
        yield connection


def stalled(box: RunningBox) -> int:
    """Return the streams that were ended. The port without TLS has no metrics."""
    return box.log.read_text().count('"code":"stream_stalled"')


TORRENT: dict[str, float] = {"seconds": streams.ENDLESS_S, "size": 100_000}
SHORT: dict[str, float] = {"seconds": 0.1, "size": 10}


def test_an_unread_stream_over_tls_ends_and_costs_little_memory(tls_box: tuple[RunningBox, int]) -> None:
    box, port = tls_box
    lost, body = stalled(box), json.dumps(TORRENT)
    with streams.peak_of(partial(streams.box_bytes, box)) as memory, connect(port, "http/1.1") as connection:
        connection.sendall(
            b"POST /v2/models/torrent/generate_stream HTTP/1.1\r\nHost: box\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body.encode())
        )
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        wait_until(lambda: stalled(box) == lost + 1, description="the end of the stream")
    assert memory[-1] - memory[0] < streams.MEMORY_BYTES


def test_a_stream_over_http_2_arrives_while_others_of_its_connection_are_unread(
    tls_box: tuple[RunningBox, int],
) -> None:
    box, port = tls_box
    lost = stalled(box)
    with streams.peak_of(partial(streams.box_bytes, box)) as memory, http2(port) as connection:
        for _ in range(streams.THREADS - 1):
            connection.ask("torrent", TORRENT)
        # The unread streams take the 65,535 bytes that a connection begins with.
        connection.protocol.increment_flow_control_window(2**20)
        assert b'"text":"xxxxxxxxxx"' in connection.read(connection.ask("torrent", SHORT))
        wait_until(lambda: stalled(box) == lost + streams.THREADS - 1, description="the streams' end")
    assert memory[-1] - memory[0] < streams.MEMORY_BYTES


def test_streams_that_are_reset_at_once_by_the_hundred_harm_nobody(tls_box: tuple[RunningBox, int]) -> None:
    """nginx ends such a connection itself (CVE-2023-44487)."""
    _, port = tls_box
    with suppress(OSError, ProtocolError):
        for _ in range(5):
            with http2(port) as connection:
                for _ in range(200):
                    connection.protocol.reset_stream(connection.ask("torrent", TORRENT))
                connection.flush()
    with http2(port) as connection:
        assert b'"text":"xxxxxxxxxx"' in connection.read(connection.ask("torrent", SHORT))
