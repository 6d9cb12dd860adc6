"""Callers who take a stream slowly or not at all hold neither memory, nor their model, nor the stop of the box."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from tests.support import boxes
from tests.support.boxes import RunningBox, memory_field, wait_until
from tests.support.streaming_box import StartBox
from tests.support.tritons import MODELS

STALL_S = 3.0
#: Seconds that a stream would take whose caller reads nothing: much longer than the test waits.
ENDLESS_S = 300.0


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> StartBox:
    folder = tmp_path_factory.mktemp("stalls")
    (folder / "notes").mkdir()
    for name in ("torrent", "stubborn"):
        MODELS[name].write(folder / "repository" / name)
    return partial(
        boxes.running_box,
        folder,
        folder / "repository",
        clients=(boxes.CLIENT_FOLDERS / "torrents",),
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
        TRIREME_STREAM_STALL_SECONDS=str(STALL_S),
    )


@pytest.fixture(scope="module")
def box(start: StartBox) -> Iterator[RunningBox]:
    with start(TRIREME_THREADS="4") as started:
        yield started


def ask(
    box: RunningBox, seconds: float = ENDLESS_S, model: str = "torrent", direct: bool = False
) -> socket.socket:
    """Ask for a stream and read its first bytes only. ``direct``: of Triton's own route."""
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
    assert connection.recv(15) == b"HTTP/1.1 200 OK"
    return connection


def box_bytes(box: RunningBox) -> int:
    """Memory of Triton and the workers."""
    return sum(memory_field(pid, "Pss:") for pid in (box.child("triton")["pid"], *box.workers()))


def lost_streams(box: RunningBox) -> float:
    return sum(
        box.metric("trireme_invocations_total", model=name, status="408") for name in ("torrent", "stubborn")
    )


@pytest.mark.parametrize("direct", [False, True], ids=["client", "triton's own"])
def test_an_unread_stream_ends_and_costs_little_memory(box: RunningBox, direct: bool) -> None:
    lost, before, peak = lost_streams(box), box_bytes(box), 0
    with ask(box, direct=direct):
        end = time.monotonic() + 60
        while lost_streams(box) == lost and time.monotonic() < end:
            peak = max(peak, box_bytes(box))
            time.sleep(0.1)
        assert lost_streams(box) == lost + 1
    assert peak - before < 300 * 2**20
    wait_until(lambda: box.metric("trireme_in_flight") == 0, description="the end of the stream")
    assert '"code":"stream_stalled"' in box.log.read_text().replace(" ", "")


def test_callers_who_read_nothing_give_their_models_slots_back(box: RunningBox) -> None:
    """A model has four slots here."""
    with ExitStack() as stack:
        began = time.monotonic()
        for _ in range(4):
            stack.enter_context(ask(box))
        with ask(box, seconds=0.1) as connection:
            # It waited for a slot.
            assert connection.recv(1)
        assert time.monotonic() - began < STALL_S + 15


def test_a_stop_does_not_wait_for_callers_who_read_nothing(start: StartBox) -> None:
    with start() as box, ExitStack() as stack:
        for direct in (False, True, False, True):
            stack.enter_context(ask(box, direct=direct))
        box.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert box.process.wait(60) == 0
        # The drain time alone is 25 s.
        assert time.monotonic() - began < 20


def test_a_slow_reader_gets_the_error_as_the_last_event(box: RunningBox) -> None:
    """About 2 MB a second of some 50 that the model makes."""
    received, began = b"", time.monotonic()
    with ask(box) as connection:
        while (more := connection.recv(2**16)) and time.monotonic() - began < 60:
            received = received[-2000:] + more
            if received.endswith(b"\r\n0\r\n\r\n"):
                break
            time.sleep(0.03)
    assert received.endswith(b"\r\n0\r\n\r\n")
    assert b'event: error\ndata: {"error":' in received
    assert b'"code":"stream_stalled"' in received
