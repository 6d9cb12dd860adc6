"""Callers who take a stream slowly or not at all hold neither memory, nor their model, nor the stop of the box."""

from __future__ import annotations

import json
import selectors
import signal
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import pytest
import requests
from h2.connection import H2Connection
from h2.events import DataReceived, StreamEnded
from h2.exceptions import ProtocolError

from sm.model_processes.hang_watch import MAX_GROWTH_BYTES
from tests.support import certificates
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, free_port, memory_field, retry_until_ok, wait_until
from tests.support.faults.callers import RIGHT, Callers
from tests.support.faults.inputs import echo_samples, with_golden_answers
from tests.support.multi_model_endpoint import MultiModelEndpoint
from tests.support.tritons import MODELS

STALL_S = 3.0
#: Seconds that a stream would take whose caller reads nothing: much longer than a test waits.
ENDLESS_S = 300.0
#: Slots of a model.
THREADS = 4
SLOW_READERS, SLOW_READS_S = 100, 10.0
#: What a caller may add to the memory of Triton and the worker, beside the models' own.
MEMORY_BYTES = 300 * 2**20
END_OF_STREAM = b"\r\n0\r\n\r\n"
StallingBox = Callable[..., RunningBox]


def request_stream(
    box: RunningBox, seconds: float = ENDLESS_S, model: str = "torrent", direct: bool = False
) -> socket.socket:
    """Ask for a stream. ``direct``: of Triton's own route."""
    wanted = {"seconds": seconds, "size": 100_000}
    path, body = f"/v2/models/{model}/generate_stream", json.dumps(wanted)
    if not direct:
        path, body = (
            "/invocations",
            json.dumps({"modelname": "torrent", "payload": {**wanted, "model": model}}),
        )
    connection = socket.create_connection(("127.0.0.1", box.port), timeout=60)
    connection.sendall(
        f"POST {path} HTTP/1.1\r\nHost: box\r\nAccept: text/event-stream\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    return connection


def ask(
    box: RunningBox, seconds: float = ENDLESS_S, model: str = "torrent", direct: bool = False
) -> socket.socket:
    """Ask for a stream and read its first bytes only."""
    connection = request_stream(box, seconds, model, direct)
    head = connection.recv(15)
    assert head == b"HTTP/1.1 200 OK", head
    return connection


def box_bytes(box: RunningBox) -> int:
    """Memory of Triton and the workers."""
    return sum(memory_field(pid, "Pss:") for pid in (box.child("triton")["pid"], *box.workers()))


def lost_streams(box: RunningBox) -> float:
    return sum(
        box.metric("trireme_invocations_total", model=name, status="408") for name in ("torrent", "stubborn")
    )


def wait_until_idle(box: RunningBox) -> None:
    wait_until(lambda: box.metric("trireme_in_flight") == 0, description="the end of all streams")


@contextmanager
def peak_of(measure: Callable[[], int]) -> Iterator[list[int]]:
    """Yield a list that has the value before the block, and after the block its peak."""
    values, done = [measure()], threading.Event()
    peak = values[0]

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.2):
            with suppress(OSError, ProcessLookupError):
                peak = max(peak, measure())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield values
    finally:
        done.set()
        thread.join()
        values.append(peak)


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
    with peak_of(partial(box_bytes, box)) as memory, ask(box, direct=direct):
        wait_until(lambda: lost_streams(box) == lost + 1, description="the end of the unread stream")
    assert memory[-1] - memory[0] < MEMORY_BYTES
    wait_until_idle(box)
    assert '"code":"stream_stalled"' in box.log.read_text().replace(" ", "")


def test_callers_who_read_nothing_give_their_models_slots_back(box: RunningBox) -> None:
    with ExitStack() as stack:
        for _ in range(THREADS):
            stack.enter_context(ask(box))
        with ask(box, seconds=0.1) as connection:
            # It waited for a slot; the streams before it would take minutes.
            assert connection.recv(1)


def test_an_unload_does_not_wait_for_the_end_of_an_unread_stream(boxes: Boxes) -> None:
    with boxes.own(mode="multi-model", TRIREME_STREAM_STALL_SECONDS=str(STALL_S)) as box:
        endpoint = MultiModelEndpoint(box)
        url = endpoint.platform.write_flat("torrent", MODELS["torrent"])
        endpoint.load_successfully("torrent", url)
        with ask(box, direct=True):
            # The stream alone would take minutes; a request waits two for its answer.
            assert endpoint.unload("torrent").status_code == 200
        assert endpoint.names() == []


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


def test_a_hundred_slow_readers_cost_little_memory_and_harm_no_other_caller(box: RunningBox) -> None:
    """Read 10 kB a second of each of 100 streams, of which the box serves a few and refuses the others."""
    heads: Counter[bytes] = Counter()
    samples = with_golden_answers([*echo_samples("echo")], box.port)
    others = Callers(box.port, samples, THREADS).start()
    with (
        selectors.DefaultSelector() as selector,
        ExitStack() as stack,
        peak_of(partial(box_bytes, box)) as memory,
    ):
        stack.callback(others.stop)
        for number in range(SLOW_READERS):
            reader = stack.enter_context(request_stream(box, direct=bool(number % 2)))
            selector.register(reader, selectors.EVENT_READ, data=True)
        end = time.monotonic() + SLOW_READS_S
        while time.monotonic() < end and selector.get_map():
            for key, _ in selector.select(1.0):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                try:
                    received = connection.recv(1000)
                except ConnectionResetError:
                    received = b""
                if key.data:
                    heads[received[:12]] += 1
                    selector.modify(connection, selectors.EVENT_READ, data=False)
                if not received:
                    selector.unregister(connection)
            time.sleep(0.1)
    assert set(heads) <= {b"HTTP/1.1 200", b"HTTP/1.1 429"}, heads
    assert heads[b"HTTP/1.1 200"] >= THREADS, heads
    assert set(others.outcomes()) == {RIGHT}, others.details
    assert memory[-1] - memory[0] < MEMORY_BYTES
    wait_until_idle(box)


@pytest.mark.parametrize("direct", [False, True], ids=["client", "triton's own"])
def test_a_model_that_ignores_the_end_of_its_stream_is_loaded_again(box: RunningBox, direct: bool) -> None:
    """Triton keeps what the model sends after that. Its memory grows by some hundred MB a second.

    Triton 2.51 may itself end as the model's process is killed, if that held a lock just then; it is back in seconds.
    """
    hangs = partial(box.metric, "trireme_model_hangs_total", model="stubborn")
    before = hangs()
    with peak_of(partial(box_bytes, box)) as memory:
        ask(box, seconds=20.0, model="stubborn", direct=direct).close()
        wait_until(lambda: hangs() == before + 1, 20.0, description="the end of the model's process")
    assert memory[-1] - memory[0] < 2 * MAX_GROWTH_BYTES

    body = {"seconds": 0.1, "size": 10}
    url = f"{box.url}/v2/models/stubborn/generate_stream"
    retry_until_ok(lambda: requests.post(url, json=body, timeout=30))


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


TORRENT: dict[str, float] = {"seconds": ENDLESS_S, "size": 100_000}
SHORT: dict[str, float] = {"seconds": 0.1, "size": 10}


def test_an_unread_stream_over_tls_ends_and_costs_little_memory(tls_box: tuple[RunningBox, int]) -> None:
    box, port = tls_box
    lost, body = stalled(box), json.dumps(TORRENT)
    with peak_of(partial(box_bytes, box)) as memory, connect(port, "http/1.1") as connection:
        connection.sendall(
            b"POST /v2/models/torrent/generate_stream HTTP/1.1\r\nHost: box\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body.encode())
        )
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        wait_until(lambda: stalled(box) == lost + 1, description="the end of the stream")
    assert memory[-1] - memory[0] < MEMORY_BYTES


def test_a_stream_over_http_2_arrives_while_others_of_its_connection_are_unread(
    tls_box: tuple[RunningBox, int],
) -> None:
    box, port = tls_box
    lost = stalled(box)
    with peak_of(partial(box_bytes, box)) as memory, http2(port) as connection:
        for _ in range(THREADS - 1):
            connection.ask("torrent", TORRENT)
        # The unread streams take the 65,535 bytes that a connection begins with.
        connection.protocol.increment_flow_control_window(2**20)
        assert b'"text":"xxxxxxxxxx"' in connection.read(connection.ask("torrent", SHORT))
        wait_until(lambda: stalled(box) == lost + THREADS - 1, description="the streams' end")
    assert memory[-1] - memory[0] < MEMORY_BYTES


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
