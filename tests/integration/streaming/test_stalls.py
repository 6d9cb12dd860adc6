"""Callers who take a stream slowly or not at all hold neither memory, nor their model, nor the stop of the box."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import requests

from sm.triton.hangs import MAX_GROWTH_BYTES
from tests.support.boxes import RunningBox, retry_until_ok, running_box, wait_until
from tests.support.faults import streams
from tests.support.model_archives import ArchiveFolder
from tests.support.multi_model_endpoint import MultiModelEndpoint
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
    platform = ArchiveFolder(tmp_path / "archives")
    with running_box(
        tmp_path,
        None,
        SAGEMAKER_MULTI_MODEL="true",
        TRIREME_MODEL_ARCHIVES=str(platform.home),
        TRIREME_STREAM_STALL_SECONDS=str(streams.STALL_S),
    ) as box:
        endpoint = MultiModelEndpoint(box, platform)
        endpoint.load_successfully("torrent", platform.write_flat("torrent", MODELS["torrent"]))
        with streams.ask(box, seconds=60.0, direct=True):
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
