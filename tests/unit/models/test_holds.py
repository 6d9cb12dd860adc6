"""A model that a request holds is not unloaded; a hold ends with its request."""

from __future__ import annotations

from pathlib import Path

from sm.models.holds import Holds, alone


def test_nobody_is_alone_with_a_model_until_its_last_request_ends(tmp_path: Path) -> None:
    holds = Holds(tmp_path)
    assert holds.take("a")
    assert holds.take("a")
    holds.release("a")
    with alone(tmp_path, "a") as is_idle:
        assert not is_idle
    holds.release("a")
    with alone(tmp_path, "a") as is_idle:
        assert is_idle


def test_a_model_that_is_being_unloaded_cannot_be_held(tmp_path: Path) -> None:
    holds = Holds(tmp_path)
    with alone(tmp_path, "a"):
        assert not holds.take("a")
    assert holds.take("a")
