"""A short benchmark run, from the command line to the table of results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.__main__ import measure_draw, parse
from bench.contestants.loop import Loop
from bench.measuring import Measurements
from bench.results import Results
from bench.samples import sample
from bench.work import WORKS
from sm.errors import CommandError


@pytest.mark.parametrize("model", list(WORKS))
def test_the_work_that_contestants_share_gives_the_expected_result(
    model: str, contestant_files: Path
) -> None:
    result = WORKS[model](contestant_files, "instant")(sample(model).content)
    assert sample(model).expected in json.dumps(result).encode()


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


def test_a_contestant_that_does_not_start_is_tried_again_and_then_reported_missing(
    contestant_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_fails = iter([True, False, True, True])

    class FailsToStart(Loop):
        def prepare(self) -> None:
            if next(start_fails):
                raise CommandError("The port was taken.")

    monkeypatch.setattr("bench.__main__.find", lambda _: FailsToStart)
    results = Results({}, {}, {"loop": "no server"})
    measurements = Measurements(["bert_base"], ["json"], [2], 1.0)
    measure_draw(results, "loop", "instant", 0, measurements, contestant_files)
    assert [record.draw for record in results.records] == [0]
    assert not results.missing
    measure_draw(results, "loop", "instant", 1, measurements, contestant_files)
    assert len(results.records) == 1
    assert results.missing == {"loop, instant, draw 2": "The port was taken."}


def test_an_unknown_contestant_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--contestants", "nobody"])
    assert "nobody" in capsys.readouterr().err
