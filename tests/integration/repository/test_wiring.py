"""``sm inspect`` finds exactly those faults of an ensemble for which Triton would refuse it."""

from __future__ import annotations

import re
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
from tests.support.boxes import wait_until
from tests.support.tritons import TRITON_TIMEOUT_S, prepare_triton


@pytest.mark.parametrize("name", INVALID_ENSEMBLES)
def test_each_fault_of_an_ensemble_is_one_problem(tmp_path: Path, name: str) -> None:
    text, words = INVALID_ENSEMBLES[name]
    write_repository(tmp_path, **{name: text})
    found = problems.find_problems(tmp_path)
    (matching,) = (problem for problem in found if all(word in problem for word in words))
    assert matching.startswith(f"{tmp_path}/{name}/config.pbtxt ")
    assert matching in [problem.sentence for problem in problems.find(tmp_path)]


def test_ensembles_that_call_each_other_are_a_problem(tmp_path: Path) -> None:
    itself = INVALID_ENSEMBLES["itself"][0]
    write_repository(tmp_path, one=itself.replace("itself", "other"), other=itself.replace("itself", "one"))
    found = problems.find_problems(tmp_path)
    assert [re.findall(r"'(\w+)'", sentence) for sentence in found] == [["other", "one"], ["one", "other"]]


def test_triton_refuses_every_faulty_ensemble_and_loads_the_good_ones(tmp_path: Path) -> None:
    assert (
        problems.find_problems(write_repository(tmp_path / "good", good=VALID_ENSEMBLE, any_size=ANY_SIZE))
        == []
    )
    triton = prepare_triton(tmp_path, [])
    faulty = {name: text for name, (text, _) in INVALID_ENSEMBLES.items()}
    write_repository(triton.box.repository, good=VALID_ENSEMBLE, any_size=ANY_SIZE, **faulty)

    def index() -> list[dict[str, str]]:
        """The models of a Triton that has tried to load all."""
        try:
            url = f"http://127.0.0.1:{triton.box.http_port}/v2/repository/index"
            rows: list[dict[str, str]] = requests.post(url, timeout=5).json()
        except requests.ConnectionError:
            return []
        return rows

    triton.launch()
    try:
        rows = wait_until(index, TRITON_TIMEOUT_S, "Triton's answer")
    finally:
        triton.stop()
    ready = {row["name"] for row in rows if row.get("state") == "READY"}
    assert ready == {"good", "any_size", "front", "back", "words", "small"}
