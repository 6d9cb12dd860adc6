"""A call ends at its deadline, and its shared memory is safe until the model is done."""

from __future__ import annotations

import itertools
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sm.errors import DeadlinePassed
from sm.invocation import Invocation, running
from sm.settings import Settings
from sm.triton import server
from sm.triton.transport import Transport
from tests.support.boxes import wait_until
from tests.support.tritons import TritonProcess

OUTPUT_SIZE = 60_000
#: The model works until there is a note ``go-on``.
FOREVER = -1.0


def infer_slowly(transport: Transport, seconds: float) -> Any:
    """Call a model that takes this long. Its output goes through shared memory once its size is known."""
    inputs = {"seconds": np.array([[seconds]], np.float32), "size": np.array([[OUTPUT_SIZE]])}
    return transport.infer("slow", inputs)["y"]


def let_deadline_pass(transport: Transport, notes: Path) -> None:
    """Call the model with a deadline that passes while it works."""
    for note in notes.iterdir():
        note.unlink()

    def passes_while_it_works() -> bool:
        with running(Invocation(time.monotonic() + 0.4)), pytest.raises(DeadlinePassed):
            infer_slowly(transport, 1.5)
        return (notes / "began").exists()

    # On a busy machine the deadline may pass before the model has the request.
    wait_until(passes_while_it_works)


def test_a_model_that_writes_after_the_deadline_changes_no_other_answer(
    transport: Transport, notes: Path
) -> None:
    infer_slowly(transport, 0)
    let_deadline_pass(transport, notes)
    # Other calls go on meanwhile. Their outputs have the size of the region that the model still writes to.
    last_answers: deque[tuple[Any, Any]] = deque(maxlen=50)
    for number in itertools.count():
        assert number < 100_000, "the model has not been cancelled"
        x = np.full((1, OUTPUT_SIZE // 2), number, np.float32)
        last_answers.append((x, transport.infer("echo", {"x": x})["y"]))
        if (notes / "cancelled").exists():
            break
    time.sleep(0.3)
    assert all(np.array_equal(x, y) for x, y in last_answers)


def test_a_region_in_use_at_close_is_released_when_its_request_ends(
    triton: TritonProcess, notes: Path
) -> None:
    transport = Transport(triton.settings, triton.box)
    infer_slowly(transport, 0)
    (notes / "began").unlink()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(infer_slowly, transport, 0.15)
        wait_until((notes / "began").exists)
        transport.close()
        assert (call.result() == 7).all()
        del call
    assert server.regions(triton.box.http_port) == []


def test_without_a_deadline_the_setting_ends_the_call(triton: TritonProcess, notes: Path) -> None:
    transport = Transport(Settings.read({"MODEL_SERVER_TIMEOUT": "0.3"}), triton.box)
    with pytest.raises(DeadlinePassed):
        infer_slowly(transport, FOREVER)
    transport.close()
    (notes / "go-on").touch()
    # The model may have had the request or not when the time was up.
    wait_until(lambda: {"cancelled", "skipped"} & {note.name for note in notes.iterdir()})


def test_a_request_given_up_in_the_queue_reaches_the_model_as_cancelled(
    transport: Transport, notes: Path
) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(infer_slowly, transport, FOREVER)
        try:
            wait_until((notes / "began").exists)
            with running(Invocation(time.monotonic() + 1.0)), pytest.raises(DeadlinePassed):
                infer_slowly(transport, 0)
        finally:
            (notes / "go-on").touch()
        first.result()
    wait_until((notes / "skipped").exists)
