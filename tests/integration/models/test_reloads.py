"""A Python model that is out is loaded again, and nothing else is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sm.errors import BadInput
from sm.metrics import RELOADS
from sm.model_processes.generations import SharedGeneration, now
from sm.model_processes.reloads import NeedsNewTriton, Reloads
from sm.polling import SLOW_WATCH_S
from tests.support.series import value


class Reloading:
    """Reloads of the models ``one`` and ``two``, with a clock and a Triton that a test moves."""

    def __init__(self, folder: Path) -> None:
        self.shared, self.now = SharedGeneration.create(folder / "generation"), 100.0
        self.loaded, self.replaced = list[str](), list[str]()
        #: What the load of a model does, once.
        self.during: Callable[[], object] = lambda: None
        #: What Triton has lost.
        self.lost = set[str]()
        names = ("one", "two")
        self.reloads = Reloads(
            self.shared, lambda: names, self.load, self.replaced.append, self.lost.copy, lambda: self.now
        )

    def load(self, model: str) -> None:
        self.loaded.append(model)
        self.lost.discard(model)
        during, self.during = self.during, lambda: None
        during()

    def fail(self, error: Exception) -> None:
        def during() -> None:
            raise error

        self.during = during

    def poll(self) -> bool:
        """Poll once, wait for the reloads that the poll started, and say whether ``one`` is still out."""
        threads_before = set(threading.enumerate())
        self.reloads.poll()
        for thread in set(threading.enumerate()) - threads_before:
            thread.join()
        return bool(self.shared.out_since("one"))


@pytest.fixture
def box(tmp_path: Path) -> Reloading:
    """With the model ``one`` out."""
    reloading = Reloading(tmp_path)
    reloading.poll()
    assert reloading.loaded == []
    reloading.shared.take_out("one", now())
    return reloading


def test_a_model_that_is_out_is_loaded_again_and_admitted(box: Reloading) -> None:
    before = value(RELOADS.labels("one"))
    box.shared.refuse("one")
    assert [box.poll(), box.poll()] == [False, False]
    assert box.loaded == ["one"]
    assert not box.shared.refusal("one")
    assert value(RELOADS.labels("one")) == before + 1


def test_a_model_that_triton_has_lost_is_loaded_again_beside_one_that_is_out(box: Reloading) -> None:
    box.lost.add("two")
    box.now += SLOW_WATCH_S
    number = box.shared.number("two")
    assert [box.poll(), box.poll()] == [False, False]
    assert sorted(box.loaded) == ["one", "two"]
    assert (box.shared.number("two"), box.shared.loaded_since("two")) == (number, 0)


def test_a_model_that_does_not_load_is_tried_again_later(box: Reloading) -> None:
    box.fail(BadInput("it does not load"))
    assert [box.poll(), box.poll()] == [True, True]
    assert box.loaded == ["one"]
    box.now += 1.0
    assert not box.poll()
    assert box.loaded == ["one", "one"]


def test_a_process_that_dies_during_the_reload_causes_another(box: Reloading) -> None:
    def lose() -> None:
        time.sleep(0.01)
        box.shared.take_out("one", now())

    box.during = lose
    assert [box.poll(), box.poll()] == [True, False]
    assert box.loaded == ["one", "one"]


def test_a_load_that_this_triton_cannot_do_replaces_triton(box: Reloading) -> None:
    box.fail(NeedsNewTriton("Triton cannot load 'one'"))
    box.poll()
    assert len(box.replaced) == 1
