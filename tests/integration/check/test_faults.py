"""``sm check-client`` finds each fault that a client can have and names it in one sentence."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.check import faulty_clients as faulty
from tests.support.check_client import CheckResult, check_client


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder with a client for each fault, and their model."""
    folder = tmp_path_factory.mktemp("faulty")
    faulty.write_clients(folder)
    return folder


@pytest.fixture(scope="module")
def check_cached(project: Path) -> Callable[[str], CheckResult]:
    """Check a client by name; each is checked only once."""
    return functools.cache(functools.partial(check_client, project))


def test_a_client_without_a_fault_passes_every_check(check_cached: Callable[[str], CheckResult]) -> None:
    report = check_cached("sound")
    assert report.status == 0, report.sentences
    assert set(report.sentences) == {
        "loads alone",
        "names and shapes",
        "golden answer",
        "its input",
        "mutated payloads",
        "threads",
        "memory",
    }
    assert list(report.stages) == ["decode", "preprocess", "infer", "postprocess", "encode"]


@pytest.mark.parametrize(
    ("fault", "check_name", "sentence"),
    [
        ("wrong_dtype", "names and shapes", "wrong dtype: it gives 'echo' 'x' as FP64, not FP32"),
        pytest.param(
            "wrong_dtype_named",
            "names and shapes",
            "wrong dtype: its input 'x' is FP64 [-1]",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "wrong_shape",
            "names and shapes",
            "wrong shape: it gives 'echo' 'x' as [1, 1, 3], not [-1, -1]",
            marks=pytest.mark.exhaustive,
        ),
        ("shared_state", "threads", "state shared between threads: among 64 a request gets another's answer"),
        (
            "order_of_a_batch",
            "threads",
            "state shared between threads: among 64 a request gets another's answer",
        ),
        ("leak", "memory", "leak: "),
        (
            "metric_in_a_request",
            "golden answer",
            "the sample gives a 500: the client of 'metric_in_a_request' failed: it makes the metric 'answers'",
        ),
        ("slow_import", "loads alone", "slow import: 4."),
        pytest.param("unhandled_null", "mutated payloads", "unhandled null: ", marks=pytest.mark.exhaustive),
        ("golden_drift", "golden answer", "golden drift: result[0] is 5.0, not 3"),
        pytest.param("non_json_result", "golden answer", "non-JSON result: ", marks=pytest.mark.exhaustive),
        (
            "bytes_result",
            "golden answer",
            "non-JSON result: the sample gives a 500: the result of 'bytes_result'",
        ),
        ("network_at_import", "loads alone", "network at import: it wants weights.example:80 (line 11)"),
        ("mutation_of_its_input", "its input", "mutation of its input: payload.numbers is another"),
    ],
)
def test_a_fault_is_found_and_named(
    check_cached: Callable[[str], CheckResult], fault: str, check_name: str, sentence: str
) -> None:
    report = check_cached(fault)
    assert report.status == 1
    assert report.failed[check_name].startswith(sentence), report.failed


def test_bytes_are_named_with_their_place_and_the_next_step(
    check_cached: Callable[[str], CheckResult],
) -> None:
    sentence = check_cached("bytes_result").failed["golden answer"]
    assert "result[0].label is bytes: decode text with .decode()" in sentence


def test_a_leak_is_named_with_its_line(check_cached: Callable[[str], CheckResult], project: Path) -> None:
    lines = (project / "clients" / "leak" / "client.py").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "seen.append" in text)
    assert f"client.py, line {line}" in check_cached("leak").failed["memory"]


def test_an_unhandled_null_is_shown_with_the_line_that_fails(
    check_cached: Callable[[str], CheckResult],
) -> None:
    sentence = check_cached("unhandled_null").failed["mutated payloads"]
    assert '"label": null' in sentence
    assert "AttributeError: 'NoneType' object has no attribute 'strip' (client.py, line" in sentence
