"""The stages of the GPU command: which results are kept, which stages run again, and the report."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bench.gpu import stages as stages_module
from bench.gpu.stages import RESULTS, Context, Result, Results, Stage, run_all


def do_nothing(context: Context) -> Result:
    return Result()


FIRST, SECOND = Stage("first", do_nothing, 60), Stage("second", do_nothing, 60)


@pytest.fixture
def started_stages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of the stages that would be started, instead of starting processes."""
    names: list[str] = []

    def run_one(name: str, limit_s: float, work: Path, arguments: object) -> dict[str, object]:
        names.append(name)
        ended = "took longer than 1 s" if name == "slow" else "whole"
        return {"ended": ended, "checks": [{"name": name, "outcome": "passed", "detail": "a | b"}]}

    monkeypatch.setattr(stages_module, "run_one", run_one)
    return names


def run_stages(tmp_path: Path, *stages: Stage, time_left_s: float = 1000) -> bool:
    return run_all(stages, Results(tmp_path / RESULTS), tmp_path, (), time.monotonic() + time_left_s)


def test_a_second_call_runs_only_the_stages_that_the_first_did_not(
    tmp_path: Path, started_stages: list[str]
) -> None:
    assert run_stages(tmp_path, FIRST)
    assert run_stages(tmp_path, FIRST, SECOND)
    assert started_stages == ["first", "second"]


def test_a_stage_that_does_not_fit_into_the_time_waits_for_the_next_call(
    tmp_path: Path, started_stages: list[str]
) -> None:
    assert not run_stages(tmp_path, FIRST, time_left_s=10)
    assert started_stages == []


def test_a_stage_whose_files_were_lost_runs_again(tmp_path: Path, started_stages: list[str]) -> None:
    stage = Stage("first", do_nothing, 60, makes="model")
    assert run_stages(tmp_path, stage)
    (tmp_path / "model").touch()
    run_stages(tmp_path, stage)
    (tmp_path / "model").unlink()
    run_stages(tmp_path, stage)
    assert started_stages == ["first", "first"]
