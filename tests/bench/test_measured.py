"""One short run of everything between the command line and the table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.__main__ import one, parse
from bench.measuring import Wanted
from bench.results import Results
from bench.samples import sample
from bench.work import WORKS


@pytest.mark.parametrize("model", list(WORKS))
def test_the_common_work_is_right(model: str, shared: Path) -> None:
    result = WORKS[model](shared, "instant")(sample(model).content)
    assert sample(model).expected in json.dumps(result).encode()


@pytest.mark.skipif(shutil.which("wrk") is None, reason="there is no wrk: apt-get install wrk")
def test_the_box_is_measured(shared: Path) -> None:
    results = Results({}, {}, {"trireme": "this box"})
    one(results, "trireme", "instant", 0, Wanted(["bert_base"], ["json"], [2], 1.0), shared)
    assert not results.missing
    (record,) = results.records
    assert record.answers > 10
    assert record.wrong == record.lost == 0
    assert record.cost > 0
    assert record.memory > record.own_memory > 0


def test_nothing_is_measured_of_what_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--contestants", "nobody"])
    assert "nobody" in capsys.readouterr().err
