"""The stages of the GPU command: what is kept, what is run again, and how it is shown."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.gpu import stages as stages_module
from tests.gpu.report import markdown
from tests.gpu.stages import RESULTS, Context, Result, Results, Stage, run_all


def nothing(context: Context) -> Result:
    return Result()


FIRST, SECOND = Stage("first", nothing, 60), Stage("second", nothing, 60)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stages that were run, in the place of their processes."""
    names: list[str] = []

    def run_one(name: str, limit_s: float, work: Path, arguments: object) -> dict[str, object]:
        names.append(name)
        how = "took longer than 1 s" if name == "slow" else "whole"
        return {"ended": how, "checks": [{"name": name, "outcome": "passed", "detail": "a | b"}]}

    monkeypatch.setattr(stages_module, "run_one", run_one)
    return names


def go(tmp_path: Path, *stages: Stage, seconds: float = 1000) -> bool:
    return run_all(stages, Results(tmp_path / RESULTS), tmp_path, (), time.monotonic() + seconds)


def test_a_second_call_runs_only_what_the_first_did_not(tmp_path: Path, asked: list[str]) -> None:
    assert go(tmp_path, FIRST)
    assert go(tmp_path, FIRST, SECOND)
    assert asked == ["first", "second"]


def test_a_stage_that_does_not_fit_into_the_time_is_left_for_the_next_call(
    tmp_path: Path, asked: list[str]
) -> None:
    assert not go(tmp_path, FIRST, seconds=10)
    assert asked == []


def test_a_stage_whose_files_were_lost_runs_again(tmp_path: Path, asked: list[str]) -> None:
    stage = Stage("first", nothing, 60, makes="model")
    assert go(tmp_path, stage)
    (tmp_path / "model").touch()
    go(tmp_path, stage)
    (tmp_path / "model").unlink()
    go(tmp_path, stage)
    assert asked == ["first", "first"]


def test_nothing_runs_after_a_failed_stage_that_the_rest_needs(tmp_path: Path, asked: list[str]) -> None:
    assert not go(tmp_path, Stage("slow", nothing, 60, makes="model"), FIRST)
    assert asked == ["slow"]


def test_a_failed_stage_that_nothing_needs_is_kept_and_run_again(tmp_path: Path, asked: list[str]) -> None:
    slow = Stage("slow", nothing, 60)
    assert go(tmp_path, slow, FIRST)
    assert go(tmp_path, slow, FIRST)
    assert asked == ["slow", "first", "slow"]


def test_the_report_names_each_check_with_its_outcome_and_breaks_no_table(
    tmp_path: Path, asked: list[str]
) -> None:
    go(tmp_path, FIRST)
    text = markdown(json.loads((tmp_path / RESULTS).read_text())["stages"])
    assert "| first | passed | a / b |" in text
