"""``sm check-client`` finds each fault that a client can have and names it in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from sm.client import Triton
from sm.commands.client_loading import NoTriton
from sm.plugins.loading import ClientSource, load
from tests.integration.check import faulty_clients as faulty
from tests.support.check_client import check_client
from trireme_tools.check.calls import InProcessCaller
from trireme_tools.check.client_checks import CheckFailed, Sample, check_golden


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder with a client for each fault, and their model."""
    folder = tmp_path_factory.mktemp("faulty")
    faulty.write_clients(folder)
    return folder


def test_a_client_without_a_fault_passes_every_check(project: Path) -> None:
    result = check_client(project, "sound")
    assert result.status == 0, result.sentences
    checks = "loads alone|names and shapes|golden answer|its input|mutated payloads|threads|memory"
    assert set(result.sentences) == set(checks.split("|"))
    assert list(result.stages) == ["decode", "preprocess", "infer", "postprocess", "encode"]


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("wrong_dtype", {"names and shapes": "FP64, not FP32"}),
        pytest.param("wrong_dtype_named", {"names and shapes": "FP64 [-1]"}, marks=pytest.mark.exhaustive),
        pytest.param("wrong_shape", {"names and shapes": "[1, 1, 3]"}, marks=pytest.mark.exhaustive),
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
        pytest.param("order_of_a_batch", {"threads": ""}, marks=pytest.mark.exhaustive),
        # test_alone.py has the other faults of an import.
        ("network_at_import", {"loads alone": "weights.example:80 (line 11)"}),
    ],
)
def test_a_fault_is_found_and_named(project: Path, fault: str, found: dict[str, str]) -> None:
    failed = check_client(project, fault).failed
    assert set(failed) == set(found)
    assert [check for check, named in found.items() if named not in failed[check]] == []


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
