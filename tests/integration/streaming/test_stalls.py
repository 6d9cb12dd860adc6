"""Callers who take a stream slowly or not at all hold neither memory, nor their model, nor the stop of the box."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from functools import partial

import pytest
import requests
import websocket

from sm.model_processes.hang_watch import MAX_GROWTH_BYTES
from tests.integration.streaming.stalls import (
    ENDLESS_S,
    MEMORY_BYTES,
    SHORT,
    TORRENT,
    grows_less_than,
    lost_streams,
)
from tests.support.boxes import RunningBox, retry_until_ok, wait_until
from tests.support.faults.callers import RIGHT, Callers
from tests.support.faults.inputs import echo_samples, with_golden_answers
from tests.support.raw_http import begin_post

#: Slots of the box.
THREADS = 4
SLOW_READERS, SLOW_READS = 100, 50
END_OF_STREAM = b"\r\n0\r\n\r\n"


def request_stream(box: RunningBox, seconds: float = ENDLESS_S, direct: bool = False) -> socket.socket:
    """Ask for a stream. ``direct``: of Triton's own route."""
    wanted = {"seconds": seconds, "size": 100_000}
    path = "/v2/models/torrent/generate_stream" if direct else "/invocations"
    body = json.dumps(wanted) if direct else json.dumps({"modelname": "torrent", "payload": wanted})
    return begin_post(box.port, path, body.encode(), "Accept: text/event-stream")


def ask(box: RunningBox, seconds: float = ENDLESS_S, direct: bool = False) -> socket.socket:
    """Ask for a stream and read its first bytes only."""
    connection = request_stream(box, seconds, direct)
    head = connection.recv(15)
    assert head == b"HTTP/1.1 200 OK", head
    return connection


def wait_until_idle(box: RunningBox) -> None:
    for slots in ("trireme_in_flight", "trireme_model_in_flight"):
        wait_until(partial(lambda name: box.metric(name) == 0, slots), description="the end of all streams")


@pytest.mark.parametrize("direct", [False, True], ids=["client", "triton's own"])
def test_an_unread_stream_ends_gives_its_slot_back_and_delays_nobody(box: RunningBox, direct: bool) -> None:
    lost = lost_streams(box)
    with grows_less_than(MEMORY_BYTES, box), ask(box, direct=direct):
        for _ in range(5):
            assert box.invoke("words", {"text": "a b"}, timeout=30).json()["result"] == ["a", "b"]
        wait_until(lambda: lost_streams(box) == lost + 1, description="the end of the unread stream")
        wait_until_idle(box)


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
    with ExitStack() as stack:  # The first streams of a box enlarge its processes for good.
        for _ in range(THREADS):
            stack.enter_context(ask(box))
        wait_until_idle(box)
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


def test_a_stop_does_not_wait_for_callers_who_read_nothing(either_box: RunningBox) -> None:
    """It closes an idle WebSocket at once and waits for a stream that is read. The last test of these boxes."""
    url = f"ws://127.0.0.1:{either_box.port}/invocations-bidirectional-stream"
    words = {"modelname": "words", "payload": {"text": "one two three four", "seconds": 1.0}}
    with (
        ask(either_box),
        ask(either_box, direct=True),
        closing(websocket.create_connection(url, timeout=30)) as conversation,
        requests.post(
            f"{either_box.url}/invocations",
            json=words,
            headers={"Accept": "text/event-stream"},
            stream=True,
            timeout=30,
        ) as stream,
    ):
        lines = (line for line in stream.iter_lines(chunk_size=1) if line)
        next(lines)
        either_box.process.send_signal(signal.SIGTERM)
        opcode, reason = conversation.recv_data()
        assert conversation.sock is not None
        conversation.sock.close()  # the WebSocket's own close() does nothing any more
        assert (opcode, int.from_bytes(reason[:2], "big")) == (websocket.ABNF.OPCODE_CLOSE, 1001)
        assert [json.loads(line[6:])["result"] for line in lines] == ["two", "three", "four"]
        assert either_box.process.wait(60) == 0
