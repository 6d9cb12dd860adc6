"""The memory of pictures: accounted before it is used, until the last reference to the pixels is gone."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sm.client import decode_budget, images
from sm.client.decode_budget import DecodeBudget, available_memory, limit_per_worker
from sm.deadline import Deadline, running
from sm.errors import BadInput, CallerGone, Overloaded, TooLarge
from sm.settings import Settings
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
