"""Callers who take a stream slowly or not at all hold neither memory, nor their model, nor the stop of the box."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import pytest
import requests
from h2.connection import H2Connection
from h2.events import DataReceived, StreamEnded

from sm.model_processes.hang_watch import MAX_GROWTH_BYTES
from tests.support import certificates
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, free_port, memory_field, retry_until_ok, wait_until
from tests.support.faults.callers import RIGHT, Callers
from tests.support.faults.inputs import echo_samples, with_golden_answers

STALL_S = 3.0
#: Seconds that a stream would take whose caller reads nothing: much longer than a test waits.
ENDLESS_S = 300.0
TORRENT: dict[str, float] = {"seconds": ENDLESS_S, "size": 100_000}
SHORT: dict[str, float] = {"seconds": 0.1, "size": 10}
#: Slots of a model.
THREADS = 4
SLOW_READERS, SLOW_READS = 100, 50
#: What a caller may add to the memory of Triton and the worker, beside the models' own.
MEMORY_BYTES = 300 * 2**20
END_OF_STREAM = b"\r\n0\r\n\r\n"
StallingBox = Callable[..., RunningBox]


def request_stream(box: RunningBox, seconds: float = ENDLESS_S, direct: bool = False) -> socket.socket:
    """Ask for a stream. ``direct``: of Triton's own route."""
    wanted: dict[str, object] = {"seconds": seconds, "size": 100_000}
    path, body = "/v2/models/torrent/generate_stream", json.dumps(wanted)
    if not direct:
        path, body = "/invocations", json.dumps({"modelname": "torrent", "payload": wanted})
    connection = socket.create_connection(("127.0.0.1", box.port), timeout=60)
    connection.sendall(
        f"POST {path} HTTP/1.1\r\nHost: box\r\nAccept: text/event-stream\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    return connection


def ask(box: RunningBox, seconds: float = ENDLESS_S, direct: bool = False) -> socket.socket:
    """Ask for a stream and read its first bytes only."""
    connection = request_stream(box, seconds, direct)
    head = connection.recv(15)
    assert head == b"HTTP/1.1 200 OK", head
    return connection


def box_bytes(box: RunningBox) -> int:
    """Memory of Triton and the workers."""
    return sum(memory_field(pid, "Pss:") for pid in (box.child("triton")["pid"], *box.workers()))


def lost_streams(box: RunningBox) -> int:
    """Return the streams that were ended. The port without TLS has no metrics."""
    return box.log.read_text().count('"code":"stream_stalled"')


def wait_until_idle(box: RunningBox) -> None:
    wait_until(lambda: box.metric("trireme_in_flight") == 0, description="the end of all streams")


@contextmanager
def grows_less_than(limit: int, box: RunningBox) -> Iterator[None]:
    """Check that the memory of Triton and the workers never grows by so much during the block."""
    before, done = box_bytes(box), threading.Event()

    def watch() -> int:
        peak = 0
        while not done.wait(0.2):
            with suppress(OSError):
                peak = max(peak, box_bytes(box))
        return peak

    with ThreadPoolExecutor(1) as pool:
        peak = pool.submit(watch)
        try:
            yield
        finally:
            done.set()
    assert peak.result() - before < limit


@pytest.fixture
def stalling_box(boxes: Boxes) -> StallingBox:
    """A function that takes settings and returns a box with models and a client that stream as fast as they can."""
    return partial(
        boxes,
        ("torrent", "stubborn", "echo"),
        ("torrents",),
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        TRIREME_STREAM_STALL_SECONDS=str(STALL_S),
        TRIREME_DRAIN_SECONDS="600",  # longer than a test waits
    )


@pytest.fixture
def box(stalling_box: StallingBox) -> RunningBox:
    return stalling_box(TRIREME_THREADS=str(THREADS))


@pytest.mark.parametrize("direct", [False, True], ids=["client", "triton's own"])
def test_an_unread_stream_ends_and_costs_little_memory(box: RunningBox, direct: bool) -> None:
    lost = lost_streams(box)
    with grows_less_than(MEMORY_BYTES, box), ask(box, direct=direct):
        wait_until(lambda: lost_streams(box) == lost + 1, description="the end of the unread stream")
    wait_until_idle(box)


def test_callers_who_read_nothing_give_their_models_slots_back(box: RunningBox) -> None:
    with ExitStack() as stack:
        for _ in range(THREADS):
            stack.enter_context(ask(box))
        with ask(box, seconds=0.1) as connection:
            # It waited for a slot; the streams before it would take minutes.
            assert connection.recv(1)


def test_a_slow_reader_gets_the_error_as_the_last_event(box: RunningBox) -> None:
    received, began = b"", time.monotonic()
    with ask(box) as connection:
        while (more := connection.recv(2**16)) and time.monotonic() - began < 60:
            received = received[-2000:] + more
            if received.endswith(END_OF_STREAM):
                break
            time.sleep(0.03)
    assert received.endswith(END_OF_STREAM)
    assert b'event: error\ndata: {"error":' in received
    assert b'"code":"stream_stalled"' in received


@pytest.mark.exhaustive
def test_a_hundred_slow_readers_cost_little_memory_and_harm_no_other_caller(box: RunningBox) -> None:
    """Read 10 kB a second of each of 100 streams, of which the box serves a few and refuses the others."""
    heads: Counter[bytes] = Counter()
    others = Callers(box.port, with_golden_answers([*echo_samples("echo")], box.port), THREADS).start()
    with ExitStack() as stack, grows_less_than(MEMORY_BYTES, box):
        stack.callback(others.stop)
        readers = [
            stack.enter_context(request_stream(box, direct=bool(number % 2)))
            for number in range(SLOW_READERS)
        ]
        for reader in readers:
            with suppress(ConnectionResetError):
                heads[reader.recv(12)] += 1
        for _ in range(SLOW_READS):
            for reader in readers:
                with suppress(OSError):
                    reader.recv(1000, socket.MSG_DONTWAIT)
            time.sleep(0.1)
    assert set(heads) <= {b"HTTP/1.1 200", b"HTTP/1.1 429"}, heads
    assert heads[b"HTTP/1.1 200"] >= THREADS, heads
    assert set(others.outcomes()) == {RIGHT}, others.details
    wait_until_idle(box)


def test_a_model_that_ignores_the_end_of_its_stream_is_loaded_again(box: RunningBox) -> None:
    """Triton keeps what the model sends after that: some hundred MB a second, on a busy machine less.

    Triton 2.51 may itself end as the model's process is killed, if that held a lock just then; it is back in seconds.
    """
    hangs = partial(box.metric, "trireme_model_hangs_total", model="stubborn")
    before, url = hangs(), f"{box.url}/v2/models/stubborn/generate_stream"
    body, events = {"modelname": "torrent", "payload": {**TORRENT, "model": "stubborn"}}, "text/event-stream"
    with grows_less_than(2 * MAX_GROWTH_BYTES, box):
        with requests.post(
            f"{box.url}/invocations", json=body, headers={"Accept": events}, stream=True, timeout=60
        ) as response:
            assert response.raw.read(1)
        wait_until(lambda: hangs() == before + 1, description="the end of the model's process")
    retry_until_ok(lambda: requests.post(url, json=SHORT, timeout=30))


def test_a_stop_does_not_wait_for_callers_who_read_nothing(box: RunningBox) -> None:
    """The last test of this box."""
    with ExitStack() as stack:
        for direct in (False, True, False, True):
            stack.enter_context(ask(box, direct=direct))
        box.process.send_signal(signal.SIGTERM)
        assert box.process.wait(60) == 0


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
def tls_settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    certificate, key = certificates.write(tmp_path_factory.mktemp("tls"))
    return {
        "TRIREME_TLS_CERTIFICATE": str(certificate),
        "TRIREME_TLS_KEY": str(key),
        "TRIREME_TLS_PORT": str(free_port()),
    }


@pytest.fixture
def tls_box(stalling_box: StallingBox, tls_settings: dict[str, str]) -> tuple[RunningBox, int]:
    """A box with TLS and HTTP/2, and its port."""
    box = stalling_box(TRIREME_THREADS=str(THREADS), **tls_settings)
    return box, int(tls_settings["TRIREME_TLS_PORT"])


@contextmanager
def http2(port: int) -> Iterator[Http2]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=60)) as secured:
        connection = Http2(secured)
        connection.protocol.initiate_connection()
        connection.flush()
        yield connection


def test_a_stream_over_http_2_arrives_while_others_of_its_connection_are_unread(
    tls_box: tuple[RunningBox, int],
) -> None:
    box, port = tls_box
    lost = lost_streams(box)
    with grows_less_than(MEMORY_BYTES, box), http2(port) as connection:
        for _ in range(THREADS - 1):
            connection.ask("torrent", TORRENT)
        # The unread streams take the 65,535 bytes that a connection begins with.
        connection.protocol.increment_flow_control_window(2**20)
        assert b'"text":"xxxxxxxxxx"' in connection.read(connection.ask("torrent", SHORT))
        wait_until(lambda: lost_streams(box) == lost + THREADS - 1, description="the streams' end")
