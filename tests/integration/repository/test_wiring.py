"""``sm inspect`` finds exactly those faults of an ensemble for which Triton would refuse it."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import requests

from sm.repository import problems
from tests.integration.repository.ensemble_repositories import (
    ANY_SIZE,
    INVALID_ENSEMBLES,
    VALID_ENSEMBLE,
    write_repository,
)
from tests.support.tritons import TRITON_TIMEOUT_S, prepare_triton

pytestmark = pytest.mark.core


@pytest.mark.parametrize("name", INVALID_ENSEMBLES)
def test_each_fault_of_an_ensemble_is_one_problem(tmp_path: Path, name: str) -> None:
    text, words = INVALID_ENSEMBLES[name]
    write_repository(tmp_path, **{name: text})
    found = problems.find_problems(tmp_path)
    matching = [problem for problem in found if all(word in problem for word in words)]
    assert len(matching) == 1, found
    assert matching[0].startswith(f"{tmp_path}/{name}/config.pbtxt ")
    assert matching[0] in [problem.sentence for problem in problems.find(tmp_path)]


def test_a_good_ensemble_has_no_problem(tmp_path: Path) -> None:
    write_repository(tmp_path, good=VALID_ENSEMBLE, any_size=ANY_SIZE)
    assert problems.find_problems(tmp_path) == []


def test_ensembles_that_call_each_other_are_a_problem(tmp_path: Path) -> None:
    write_repository(
        tmp_path,
        one=INVALID_ENSEMBLES["itself"][0].replace("itself", "other"),
        other=INVALID_ENSEMBLES["itself"][0].replace("itself", "one"),
    )
    found = problems.find_problems(tmp_path)
    assert [re.findall(r"'(\w+)'", sentence) for sentence in found] == [["other", "one"], ["one", "other"]]


def test_triton_refuses_every_faulty_ensemble_and_loads_the_good_ones(tmp_path: Path) -> None:
    triton = prepare_triton(tmp_path, [])
    write_repository(
        triton.box.repository,
        good=VALID_ENSEMBLE,
        any_size=ANY_SIZE,
        **{name: text for name, (text, _) in INVALID_ENSEMBLES.items()},
    )
    triton.launch()
    try:
        ready = _ready_models(triton.box.http_port)
    finally:
        triton.stop()
    assert ready == {"good", "any_size", "front", "back", "words", "small"}


def _ready_models(port: int) -> set[str]:
    """The models that are ready once Triton has tried to load all."""
    deadline = time.monotonic() + TRITON_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            rows = requests.post(f"http://127.0.0.1:{port}/v2/repository/index", timeout=5).json()
            return {row["name"] for row in rows if row.get("state") == "READY"}
        except requests.ConnectionError:
            time.sleep(0.1)
    raise AssertionError("Triton does not answer")
