"""Callers who take a stream slowly or not at all hold neither memory, nor their model, nor the stop of the box."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from tests.support.boxes import RunningBox
from tests.support.faults import streams
from tests.support.streaming_box import StartBox


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


def test_a_slow_reader_gets_the_error_as_the_last_event(box: RunningBox) -> None:
    streams.read_slowly(box)
