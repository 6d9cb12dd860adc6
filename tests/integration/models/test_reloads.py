"""A Python model that is out is loaded again, and nothing else is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sm.errors import BadInput, TriremeError
from sm.metrics import RELOADS
from sm.model_processes.generations import SharedGeneration, now
from sm.model_processes.reloads import NeedsNewTriton, Reloads
from tests.support.series import value


class Reloading:
    """Reloads with a clock and a Triton that a test moves."""

    def __init__(self, folder: Path) -> None:
        self.shared, self.now = SharedGeneration.create(folder / "generation"), 100.0
        self.names = ["one", "two"]
        self.loaded: list[str] = []
        self.replaced: list[str] = []
        self.errors: list[TriremeError] = []
        self.during: Callable[[], None] = lambda: None
        self.reloads = Reloads(
            self.shared, lambda: self.names, self.load, self.replaced.append, lambda: self.now
        )

    def load(self, model: str) -> None:
        self.loaded.append(model)
        self.during()
        if self.errors:
            raise self.errors.pop()

    def poll(self) -> None:
        """Poll once, and wait for the reloads that the poll started."""
        threads_before = set(threading.enumerate())
        self.reloads.poll()
        for thread in set(threading.enumerate()) - threads_before:
            thread.join()


@pytest.fixture
def box(tmp_path: Path) -> Reloading:
    return Reloading(tmp_path)


def test_a_model_that_is_out_is_loaded_again_and_admitted(box: Reloading) -> None:
    box.poll()
    assert box.loaded == []
    before = value(RELOADS.labels("one"))
    box.shared.take_out("one", now())
    box.shared.refuse("one")
    for _ in range(2):
        box.poll()
    assert box.loaded == ["one"]
    assert not box.shared.out_since("one")
    assert not box.shared.refusal("one")
    assert value(RELOADS.labels("one")) == before + 1


def test_a_model_that_does_not_load_is_tried_again_later(box: Reloading) -> None:
    box.errors = [BadInput("it does not load")]
    box.shared.take_out("one", now())
    for _ in range(2):
        box.poll()
    assert box.loaded == ["one"]
    assert box.shared.out_since("one")
    box.now += 1.0
    box.poll()
    assert box.loaded == ["one", "one"]
    assert not box.shared.out_since("one")


def test_a_process_that_dies_during_the_reload_causes_another(box: Reloading) -> None:
    box.shared.take_out("one", now())

    def lose_once() -> None:
        box.during = lambda: None
        time.sleep(0.01)
        box.shared.take_out("one", now())

    box.during = lose_once
    box.poll()
    assert box.shared.out_since("one")
    box.poll()
    assert box.loaded == ["one", "one"]
    assert not box.shared.out_since("one")


def test_a_load_that_this_triton_cannot_do_replaces_triton(box: Reloading) -> None:
    box.errors = [NeedsNewTriton("Triton cannot load 'one'")]
    box.shared.take_out("one", now())
    box.poll()
    assert len(box.replaced) == 1
