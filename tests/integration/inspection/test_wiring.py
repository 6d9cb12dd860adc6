"""What Triton would refuse of an ensemble is said before Triton is asked, and nothing else is."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import requests

from sm.inspection import problems
from tests.support.ensemble_repositories import ANY_SIZE, BAD, GOOD, write
from tests.support.tritons import TRITON_TIMEOUT_S, prepare_triton


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_with_an_ensemble_is_said_in_a_sentence(tmp_path: Path, name: str) -> None:
    text, sentence = BAD[name]
    write(tmp_path, **{name: text})
    said = [each for each in problems.find_problems(tmp_path) if sentence in each]
    assert len(said) == 1, problems.find_problems(tmp_path)
    assert said[0].startswith(f"{tmp_path}/{name}/config.pbtxt ")
    assert said[0] in problems.find_start_problems(tmp_path)


def test_a_good_ensemble_has_no_problem(tmp_path: Path) -> None:
    write(tmp_path, good=GOOD, any_size=ANY_SIZE)
    assert problems.find_problems(tmp_path) == []


def test_ensembles_that_ask_each_other_are_said(tmp_path: Path) -> None:
    write(
        tmp_path,
        one=BAD["itself"][0].replace("itself", "other"),
        other=BAD["itself"][0].replace("itself", "one"),
    )
    assert [sentence.rpartition("config.pbtxt ")[2] for sentence in problems.find_problems(tmp_path)] == [
        "has a step 'other' that asks 'one' again, without end.",
        "has a step 'one' that asks 'other' again, without end.",
    ]


def test_triton_refuses_each_of_them_and_loads_the_good_ones(tmp_path: Path) -> None:
    triton = prepare_triton(tmp_path, [])
    write(
        triton.box.repository, good=GOOD, any_size=ANY_SIZE, **{name: text for name, (text, _) in BAD.items()}
    )
    triton.launch()
    try:
        ready = _index(triton.box.http_port)
    finally:
        triton.stop()
    assert ready == {"good", "any_size", "front", "back", "words", "small"}


def _index(port: int) -> set[str]:
    """The models that are ready when Triton has looked at all."""
    end = time.monotonic() + TRITON_TIMEOUT_S
    while time.monotonic() < end:
        try:
            rows = requests.post(f"http://127.0.0.1:{port}/v2/repository/index", timeout=5).json()
            return {row["name"] for row in rows if row.get("state") == "READY"}
        except requests.ConnectionError:
            time.sleep(0.1)
    raise AssertionError("Triton does not answer")
