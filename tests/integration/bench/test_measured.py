"""A short benchmark run, from the command line to the table of results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.__main__ import measure_draw
from bench.measuring import Measurements
from bench.results import Results
from bench.samples import sample
from bench.work import WORKS


@pytest.mark.parametrize("model", list(WORKS))
def test_the_work_that_contestants_share_gives_the_expected_result(
    model: str, contestant_files: Path
) -> None:
    result = WORKS[model](contestant_files, "instant")(sample(model).content)
    assert sample(model).expected in json.dumps(result).encode()


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("wrk") is None, reason="there is no wrk: apt-get install wrk")
def test_a_run_records_speed_errors_and_memory_of_the_box(contestant_files: Path) -> None:
    results = Results({}, {}, {"trireme": "this box"})
    measure_draw(
        results, "trireme", "instant", 0, Measurements(["bert_base"], ["json"], [2], 1.0), contestant_files
    )
    assert not results.missing
    (record,) = results.records
    assert record.answers > 10
    assert record.wrong == record.lost == 0
    assert record.cost > 0
    assert record.memory > record.own_memory > 0
