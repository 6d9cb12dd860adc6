"""The decode budget counts a picture's memory before it is used and until the last reference to its pixels is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sm.client import decode_budget, images
from sm.client.decode_budget import DecodeBudget, limit_per_worker
from sm.errors import BadInput, CallerGone, Overloaded, TooLarge
from sm.hardware import memory_limit
from sm.invocation import Invocation, running
from sm.metrics import DECODED_BYTES
from sm.settings import Settings
from tests.support.boxes import wait_until
from tests.support.hostile_pictures import encode, large_png
from tests.support.oriented_pictures import exif_orientation
from tests.support.series import value
from tests.unit.client.memory import MIB

LARGE = large_png(1000, 1000)


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> DecodeBudget:
    """The budget of this process, with a limit of 20 MiB."""
    budget = DecodeBudget(20 * MIB)
    monkeypatch.setattr(images, "DECODED", budget)
    monkeypatch.setattr(decode_budget, "MAX_WAIT_S", 0.2)
    return budget


def used_bytes(budget: DecodeBudget) -> float:
    """Return the bytes in use after giving back pixels that nothing refers to."""
    budget.collect()
    return value(DECODED_BYTES)


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP"])
def test_pixels_count_until_their_last_view_is_gone(
    budget: DecodeBudget, image_format: str, orientation: int
) -> None:
    picture = Image.effect_noise((300, 200), 99).convert("RGB")
    content = encode(picture, image_format, exif=exif_orientation(orientation))
    pixels = images.decode(content)
    view, size = pixels[10:20].transpose(1, 0, 2), pixels.nbytes
    del pixels
    assert used_bytes(budget) == size
    del view
    assert used_bytes(budget) == 0
    with pytest.raises(BadInput):
        images.decode(content[: len(content) // 2])
    assert used_bytes(budget) == 0


def test_a_picture_without_room_waits_and_is_then_refused(budget: DecodeBudget) -> None:
    decoded = [images.decode(LARGE) for _ in range(5)]
    with pytest.raises(Overloaded) as caught:
        images.decode(LARGE)
    assert caught.value.retry_after
    decoded.clear()
    assert images.decode(LARGE).shape == (1000, 1000, 3)


def test_decoding_does_not_wait_for_a_caller_that_disconnected(
    budget: DecodeBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_budget, "MAX_WAIT_S", 30)
    budget.acquire(20 * MIB)
    with running(Invocation(time.monotonic() + 60, lambda: True)), pytest.raises(CallerGone):
        images.decode(LARGE)


def run_in_threads(*work: Any) -> None:
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_threads_together_never_use_more_than_the_budget(budget: DecodeBudget) -> None:
    observed_bytes: list[float] = []

    def acquire_and_keep() -> None:
        for _ in range(50):
            try:
                model = budget.acquire(6 * MIB)
            except Overloaded:
                continue
            observed_bytes.append(value(DECODED_BYTES))
            budget.keep(6 * MIB, np.empty(2 * MIB, np.uint8), model)

    run_in_threads(*[acquire_and_keep] * 8)
    assert 6 * MIB <= max(observed_bytes) <= 20 * MIB
    assert used_bytes(budget) == 0


@contextmanager
def request_for(model: str) -> Iterator[None]:
    """Run the block as part of a request to ``model``."""
    with running(Invocation(time.monotonic() + 60, slot_model=model)):
        yield


def exhaust_one_model(budget: DecodeBudget, size: int) -> int:
    """Acquire ``size`` bytes for one model until it is refused; return how often it succeeded."""
    with request_for("flooded"), pytest.raises(Overloaded):
        for acquired in range(100):  # noqa: B007
            budget.acquire(size)
    return acquired


@pytest.mark.parametrize("size", [1, 5, 10])
def test_a_model_flooded_with_large_pictures_leaves_room_for_small_ones(
    budget: DecodeBudget, size: int
) -> None:
    assert exhaust_one_model(budget, size * MIB) == max(1, int(17.5 / size))
    content = encode(Image.new("RGB", (800, 800)), "JPEG")  # 1.8 MiB
    with request_for("neighbour"):
        assert images.decode(content).shape == (800, 800, 3)
        with pytest.raises(Overloaded):
            budget.acquire(15 * MIB)


def test_released_memory_goes_first_to_the_waiting_model_that_has_none(
    budget: DecodeBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    exhaust_one_model(budget, 5 * MIB)
    monkeypatch.setattr(decode_budget, "MAX_WAIT_S", 30)
    served = threading.Event()

    def acquire_for_neighbour() -> None:
        with request_for("neighbour"):
            budget.acquire(10 * MIB)
            served.set()

    def keep_acquiring_for_flooded() -> None:
        with request_for("flooded"):
            while not served.is_set():
                budget.acquire(5 * MIB)
                time.sleep(0.001)
                budget.release(5 * MIB)

    def release_one_after_the_other() -> None:
        wait_until(lambda: budget._waiting["neighbour"])
        with request_for("flooded"):
            for _ in range(3):
                budget.release(5 * MIB)
                time.sleep(0.05)

    run_in_threads(acquire_for_neighbour, release_one_after_the_other, *[keep_acquiring_for_flooded] * 8)
    assert served.is_set()


def test_the_limit_is_the_setting_or_a_share_of_the_memory() -> None:
    assert limit_per_worker(Settings.read({"TRIREME_DECODE_MEMORY_MB": "100"})) == 100 * MIB
    alone = limit_per_worker(Settings.read({"SAGEMAKER_MODEL_SERVER_WORKERS": "1"}))
    assert alone == max(256 * MIB, memory_limit() // 4)


def test_pixels_are_released_for_the_model_that_decoded_them(budget: DecodeBudget) -> None:
    with request_for("one"):
        pixels = images.decode(encode(Image.new("RGB", (1000, 1000)), "JPEG"))
    del pixels
    for model in ("other", "one"):  # one that held some would leave a share free for others
        with request_for(model), budget.reserve(20 * MIB):
            pass


def test_an_answer_counts_while_it_grows_and_until_it_is_sent_or_dropped(budget: DecodeBudget) -> None:
    room = budget.room()
    room.grow(1000)
    assert used_bytes(budget) == 0  # small ones do not count
    for size in (3 * MIB, 2 * MIB, 5 * MIB):
        room.grow(size)
    assert used_bytes(budget) == 5 * MIB
    with pytest.raises(TooLarge):
        room.grow(20 * MIB)
    room.close()
    assert used_bytes(budget) == 0
    dropped = budget.room()
    dropped.grow(4 * MIB)
    del dropped
    assert used_bytes(budget) == 0
