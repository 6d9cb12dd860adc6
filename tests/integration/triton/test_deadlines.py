from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sm.deadline import Deadline, running
from sm.errors import CallerGone, DeadlinePassed
from sm.settings import Settings
from sm.triton import health
from sm.triton.transport import Transport
from tests.support.boxes import wait_until
from tests.support.tritons import TritonProcess

SIZE = 60_000


def slow(transport: Transport, seconds: float) -> Any:
    """Through shared memory once the output's size is known."""
    inputs = {"seconds": np.array([[seconds]], np.float32), "size": np.array([[SIZE]])}
    return transport.infer("slow", inputs)["y"]


@pytest.fixture
def notes(triton: TritonProcess) -> Path:
    for note in triton.notes.iterdir():
        note.unlink()
    return triton.notes


def test_a_late_writer_reaches_nobodys_answer(
    transport: Transport, triton: TritonProcess, notes: Path
) -> None:
    slow(transport, 0)
    notes.joinpath("finished").unlink()
    with running(Deadline(time.monotonic() + 0.3)), pytest.raises(DeadlinePassed):
        slow(transport, 1.5)
    # Others go on meanwhile; a region of the same size would be the late writer's.
    kept: list[tuple[Any, Any]] = []
    while not (notes / "cancelled").exists():
        x = np.full((1, SIZE // 2), len(kept), np.float32)
        kept.append((x, transport.infer("echo", {"x": x})["y"]))
        assert len(kept) < 100_000
        kept = kept[-50:]
    time.sleep(0.3)
    assert kept
    assert all(np.array_equal(x, y) for x, y in kept)


def test_what_a_late_writer_had_is_free_in_the_end(
    transport: Transport, triton: TritonProcess, notes: Path
) -> None:
    slow(transport, 0)
    notes.joinpath("finished").unlink()
    slow(transport, 0)
    notes.joinpath("finished").unlink()
    with running(Deadline(time.monotonic() + 0.2)), pytest.raises(DeadlinePassed):
        slow(transport, 1.0)
    assert triton.shared_memory_files() == []
    assert len([name for name in health.regions(triton.box.http_port) if triton.box.id in name]) == 1
    wait_until((notes / "cancelled").exists)
    time.sleep(0.5)
    transport.infer("fixed", {"x": np.zeros((1, 100_000), np.float32)})
    assert health.regions(triton.box.http_port) == triton.shared_memory_files()


def test_a_region_in_use_at_the_end_is_let_go_of_when_its_request_has_ended(
    triton: TritonProcess, notes: Path
) -> None:
    transport = Transport(triton.settings, triton.box)
    slow(transport, 0)
    notes.joinpath("began").unlink()
    asking = threading.Thread(target=slow, args=(transport, 0.15))
    asking.start()
    wait_until((notes / "began").exists)
    transport.close()
    asking.join()
    assert health.regions(triton.box.http_port) == []


def test_a_caller_that_hangs_up_ends_the_work(transport: Transport, notes: Path) -> None:
    gone = threading.Event()
    threading.Timer(0.3, gone.set).start()
    with running(Deadline(time.monotonic() + 60, gone.is_set)), pytest.raises(CallerGone):
        slow(transport, 2.0)
    # The model writes it at its end, if nobody has cancelled it.
    wait_until((notes / "cancelled").exists)
    assert not (notes / "finished").exists()


def test_no_call_begins_when_the_time_is_over(transport: Transport, notes: Path) -> None:
    with running(Deadline(time.monotonic() - 1)), pytest.raises(DeadlinePassed):
        slow(transport, 0)
    assert not (notes / "began").exists()


def test_without_a_deadline_the_setting_ends_the_call(triton: TritonProcess, notes: Path) -> None:
    transport = Transport(Settings.read({"MODEL_SERVER_TIMEOUT": "0.3"}), triton.box)
    with pytest.raises(DeadlinePassed):
        slow(transport, 1.0)
    transport.close()
    wait_until((notes / "cancelled").exists)


def test_a_request_given_up_in_the_queue_reaches_the_model_as_cancelled(
    transport: Transport, notes: Path
) -> None:
    occupied = threading.Thread(target=slow, args=(transport, 1.0))
    occupied.start()
    wait_until((notes / "began").exists)
    with running(Deadline(time.monotonic() + 0.2)), pytest.raises(DeadlinePassed):
        slow(transport, 0)
    occupied.join()
    wait_until((notes / "skipped").exists)
