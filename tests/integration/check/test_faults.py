"""``sm check-client`` finds each fault that a client can have and names it in one sentence."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from sm.client import Triton
from sm.commands.client_loading import NoTriton
from sm.plugins.loading import ClientSource, load
from tests.integration.check import faulty_clients as faulty
from tests.support.check_client import CheckResult, check_client
from trireme_tools.check.calls import InProcessCaller
from trireme_tools.check.client_checks import CheckFailed, Sample, check_golden


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
    ("fault", "found"),
    [
        ("wrong_dtype", {"names and shapes": "FP64, not FP32"}),
        pytest.param(
            "wrong_dtype_named",
            {"names and shapes": "FP64 [-1]"},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "wrong_shape",
            {"names and shapes": "[1, 1, 3], not [-1, -1]"},
            marks=pytest.mark.exhaustive,
        ),
        # The checks are independent of each other: one client has a fault for each.
        (
            "five_faults",
            {
                "golden answer": "result[1] is 4.0, not 1",
                "its input": "payload.numbers",
                "mutated payloads": '"label": null',
                "threads": "",
                "memory": "client.py, line ",
            },
        ),
        ("order_of_a_batch", {"threads": ""}),
        # test_alone.py has the other faults of an import.
        ("network_at_import", {"loads alone": "weights.example:80 (line 11)"}),
    ],
)
def test_a_fault_is_found_and_named(
    check_cached: Callable[[str], CheckResult], fault: str, found: dict[str, str]
) -> None:
    report = check_cached(fault)
    assert report.status == 1
    assert set(report.failed) == set(found)
    for check_name, named in found.items():
        assert named in report.failed[check_name], report.failed


ANSWERING = """
from sm.client import Client, TextPayload


class Answering(Client):
    payload = TextPayload

    def inference(self, payload):
        return {result}
"""


@pytest.mark.parametrize(
    ("result", "named"),
    [
        ("{1}", "JSON"),
        ("[{'label': b'cat'}]", "result[0].label"),
        ("self.metrics.counter('answers', 'Answers.').inc()", "'answers'"),
    ],
)
def test_a_result_that_cannot_be_sent_is_named(tmp_path: Path, result: str, named: str) -> None:
    """Without a Triton, as the client has no model."""
    file = tmp_path / "client.py"
    file.write_text(ANSWERING.replace("{result}", result))
    client = load(ClientSource("answering", file), cast("Triton", NoTriton()), tmp_path)
    with pytest.raises(CheckFailed) as failed:
        check_golden(InProcessCaller(client), Sample({"text": "any"}, "any"))
    assert named in str(failed.value)


def test_a_leak_is_named_with_its_line(check_cached: Callable[[str], CheckResult], project: Path) -> None:
    lines = (project / "clients" / "five_faults" / "client.py").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "seen.append" in text)
    assert f"client.py, line {line}" in check_cached("five_faults").failed["memory"]


def test_an_unhandled_null_is_shown_with_the_line_that_fails(
    check_cached: Callable[[str], CheckResult],
) -> None:
    sentence = check_cached("five_faults").failed["mutated payloads"]
    assert re.search(r"AttributeError: .* \(client\.py, line \d+", sentence), sentence
