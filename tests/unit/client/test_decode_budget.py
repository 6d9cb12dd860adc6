"""The memory of pictures: accounted before it is used, until the last reference to the pixels is gone."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sm.client import decode_budget, images
from sm.client.decode_budget import DecodeBudget, available_memory, limit_per_worker
from sm.deadline import Deadline, running
from sm.errors import BadInput, CallerGone, Overloaded, TooLarge
from sm.settings import Settings
from tests.support.boxes import wait_until
from tests.support.hostile_pictures import encoded, large_png

MIB = 2**20


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> DecodeBudget:
    """The budget of this process, with a limit of 20 MiB."""
    budget = DecodeBudget(20 * MIB)
    monkeypatch.setattr(images, "DECODED", budget)
    monkeypatch.setattr(decode_budget, "MAX_WAIT_S", 0.2)
    return budget


def used(budget: DecodeBudget) -> int:
    budget.collect()
    return budget._used


def test_pixels_count_until_the_last_view_of_them_is_gone(pictures: DecodeBudget) -> None:
    pixels = images.decode(encoded(Image.new("RGB", (1000, 1000)), "JPEG"))
    assert used(pictures) == 3_000_000
    part = pixels[10:20].transpose(1, 0, 2)
    del pixels
    assert used(pictures) == 3_000_000
    del part
    assert used(pictures) == 0


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_what_is_left_of_any_kind_is_its_pixels(pictures: DecodeBudget, kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = images.decode(encoded(Image.new("RGB", (300, 200)), kind, exif=exif))
    assert used(pictures) == pixels.nbytes
    del pixels
    assert used(pictures) == 0


def test_a_picture_that_cannot_be_decoded_leaves_nothing(pictures: DecodeBudget) -> None:
    content = encoded(Image.effect_noise((300, 200), 99), "PNG")
    with pytest.raises(BadInput):
        images.decode(content[: len(content) // 2])
    assert used(pictures) == 0


def test_a_picture_larger_than_the_whole_budget_is_too_large_with_the_number(pictures: DecodeBudget) -> None:
    with pytest.raises(TooLarge, match="takes 27 MiB of memory; at most 20 MiB"):
        images.decode(large_png(2000, 2000))
    assert used(pictures) == 0


def test_where_there_is_no_room_a_picture_waits_and_is_then_refused(pictures: DecodeBudget) -> None:
    content = large_png(1000, 1000)
    held = [images.decode(content) for _ in range(5)]
    began = time.monotonic()
    with pytest.raises(Overloaded) as caught:
        images.decode(content)
    assert time.monotonic() - began >= 0.2
    assert caught.value.retry_after
    held.clear()
    assert images.decode(content).shape == (1000, 1000, 3)


def test_room_that_is_made_while_a_picture_waits_is_taken(
    pictures: DecodeBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_budget, "MAX_WAIT_S", 30)
    pictures.acquire(20 * MIB)
    threading.Timer(0.2, pictures.release, (20 * MIB,)).start()
    assert images.decode(large_png(1000, 1000)).shape == (1000, 1000, 3)


def test_nobody_waits_for_a_caller_that_has_gone(
    pictures: DecodeBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_budget, "MAX_WAIT_S", 30)
    pictures.acquire(20 * MIB)
    with running(Deadline(time.monotonic() + 60, lambda: True)), pytest.raises(CallerGone):
        images.decode(large_png(1000, 1000))


def test_threads_never_have_more_than_the_budget(pictures: DecodeBudget) -> None:
    most: list[int] = []
    refused: list[Overloaded] = []

    def take() -> None:
        for _ in range(50):
            try:
                pictures.acquire(6 * MIB)
            except Overloaded as error:
                refused.append(error)
                continue
            most.append(pictures._used)
            pictures.keep(6 * MIB, np.empty(2 * MIB, np.uint8))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 6 * MIB <= max(most) <= 20 * MIB
    assert used(pictures) == 0


@contextmanager
def request_for(model: str) -> Iterator[None]:
    """What this thread does is done for a request to ``model``."""
    with running(Deadline(time.monotonic() + 60, model=model)):
        yield


def flood(budget: DecodeBudget, size: int) -> int:
    """Take ``size`` bytes as often as a model gets them; return how often."""
    with request_for("flooded"):
        for taken in range(100):
            try:
                budget.acquire(size)
            except Overloaded:
                return taken
    raise AssertionError("the budget has no limit")


@pytest.mark.parametrize("size", [1, 2, 4, 5, 10])
def test_a_model_flooded_with_large_pictures_leaves_room_for_small_ones(
    pictures: DecodeBudget, size: int
) -> None:
    assert flood(pictures, size * MIB) == max(1, int(17.5 / size))
    content = encoded(Image.new("RGB", (800, 800)), "JPEG")  # 1.8 MiB
    with request_for("neighbour"):
        assert images.decode(content).shape == (800, 800, 3)


def test_of_the_part_that_is_kept_free_a_model_may_have_several_pictures(pictures: DecodeBudget) -> None:
    flood(pictures, 5 * MIB)
    with request_for("neighbour"):
        pictures.acquire(MIB)
        pictures.acquire(MIB)
        with pytest.raises(Overloaded):
            pictures.acquire(4 * MIB)


def test_what_falls_free_goes_to_the_model_that_waits_and_has_nothing(
    pictures: DecodeBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    flood(pictures, 5 * MIB)
    monkeypatch.setattr(decode_budget, "MAX_WAIT_S", 30)
    served = threading.Event()

    def neighbour() -> None:
        with request_for("neighbour"):
            pictures.acquire(10 * MIB)
            served.set()

    def flooded() -> None:
        with request_for("flooded"):
            while not served.is_set():
                pictures.acquire(5 * MIB)
                time.sleep(0.001)
                pictures.release(5 * MIB)

    waiting = threading.Thread(target=neighbour)
    waiting.start()
    wait_until(lambda: pictures._waiting["neighbour"])
    callers = [threading.Thread(target=flooded) for _ in range(8)]
    for caller in callers:
        caller.start()
    # The flooded model's pictures end one after the other; each time eight more of them wait.
    with request_for("flooded"):
        for _ in range(3):
            pictures.release(5 * MIB)
            time.sleep(0.1)
    assert served.wait(30)
    for thread in (waiting, *callers):
        thread.join(30)
    with request_for("neighbour"):
        pictures.release(10 * MIB)
    assert used(pictures) == 0
    assert not pictures._held
    assert not pictures._waiting


def test_pixels_are_given_back_by_the_model_that_had_them(pictures: DecodeBudget) -> None:
    with request_for("one"):
        pixels = images.decode(encoded(Image.new("RGB", (1000, 1000)), "JPEG"))
    assert pictures._held == {"one": 3_000_000}
    del pixels
    with request_for("other"):
        pictures.collect()
    assert not pictures._held


def test_the_limit_is_what_is_set_or_a_share_of_the_memory(tmp_path: Path) -> None:
    assert limit_per_worker(Settings.read({"TRIREME_DECODE_MEMORY_MB": "100"})) == 100 * MIB
    one = limit_per_worker(Settings.read({"SAGEMAKER_MODEL_SERVER_WORKERS": "1"}))
    assert one == max(256 * MIB, available_memory() // 4)
    assert limit_per_worker(Settings.read({"SAGEMAKER_MODEL_SERVER_WORKERS": "256"})) >= 256 * MIB
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "some").write_text(f"{512 * MIB}\n")
    assert available_memory((tmp_path / "none", tmp_path / "max", tmp_path / "some")) == 512 * MIB
    assert available_memory((tmp_path / "max",)) == available_memory(())


def test_a_tool_on_somebodys_desk_has_no_limit() -> None:
    assert decode_budget.DECODED.limit == sys.maxsize
