"""``sm check-client`` finds each fault that a client can have, in this process or through a running box, and names it."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import Field

from sm.client import Client, Payload, Triton
from sm.commands.client_loading import NoTriton
from sm.plugins.loading import load
from sm.plugins.sources import ClientSource, discover
from sm.settings import HERE, Settings
from tests.integration.check import faulty_clients as faulty
from tests.support.box_fixture import Boxes
from tests.support.boxes import free_port
from tests.support.check_client import check_client
from tests.support.sm_command import run_sm
from trireme_tools.check import calls
from trireme_tools.check.calls import CheckRequest, InProcessCaller
from trireme_tools.check.check_report import ClientReport
from trireme_tools.check.client_checks import CheckFailed, Sample, check_golden, check_mutations
from trireme_tools.check.examination import run_check
from trireme_tools.check.isolated_load import find_problem
from trireme_tools.prepare.demo import prepare

CHECKS = (
    "loads alone",
    "names and shapes",
    "golden answer",
    "its input",
    "mutated payloads",
    "threads",
    "memory",
)
STAGES = ["decode", "preprocess", "infer", "postprocess"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder with a client for each fault, and their model."""
    folder = tmp_path_factory.mktemp("faulty")
    faulty.write_clients(folder)
    return folder


def test_a_client_without_a_fault_passes_every_check(project: Path) -> None:
    result = check_client(project, "sound")
    assert (result.status, set(result.sentences)) == (0, set(CHECKS))
    assert list(result.stages) == [*STAGES, "encode"]


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
        ("network_at_import", {"loads alone": "weights.example:80 (line 11)"}),
    ],
)
def test_a_fault_is_found_and_named(project: Path, fault: str, found: dict[str, str]) -> None:
    failed = check_client(project, fault).failed
    assert set(failed) == set(found)
    assert [check for check, named in found.items() if named not in failed[check]] == []


@pytest.mark.exhaustive
def test_a_running_box_gets_the_same_checks_and_a_fault_is_found_through_it(
    boxes: Boxes, project: Path
) -> None:
    names = ("sound", "unhandled_null")
    sources = {f"{name}/client.py": (project / "clients" / name / "client.py").read_text() for name in names}
    box = boxes(project / "model", (sources,))
    sound, faulty_one = (check_client(project, name, "--url", box.url) for name in names)
    assert (sound.status, list(sound.stages)) == (0, STAGES)
    passed = {row["check"]: row["passed"] for row in sound.report["checks"]}
    assert passed == {**dict.fromkeys(CHECKS, True), "its input": None, "memory": None}
    assert (faulty_one.status, set(faulty_one.failed)) == (1, {"mutated payloads"})


def test_an_address_without_a_box_fails_one_check(project: Path) -> None:
    report = check_client(project, "sound", "--url", f"http://127.0.0.1:{free_port()}")
    assert (report.status, "names and shapes" in report.failed) == (1, True)


def test_an_unknown_client_or_one_without_a_sample_is_an_error_that_says_so(
    project: Path, tmp_path: Path
) -> None:
    shutil.copytree(project / "clients" / "sound", tmp_path / "clients" / "bare")
    (tmp_path / "clients" / "bare" / "sample" / "golden.json").unlink()
    for name, named in (("nobody", "bare"), ("bare", "golden.json")):
        completed = run_sm("check-client", name, cwd=tmp_path)
        assert (completed.returncode, completed.stdout, named in completed.stderr) == (1, "", True)


# A client's own tests hold its golden answer.
@pytest.mark.exhaustive
@pytest.mark.timeout(600)  # on a busy machine
@pytest.mark.parametrize("name", [source.name for source in discover((HERE / "clients",))])
def test_each_client_of_the_box_passes_every_check(name: str) -> None:
    prepare(Settings.read({}))
    report = check_client(HERE, name)
    assert report.status == 0, report.failed
    assert all(row["passed"] for row in report.report["checks"])


@pytest.mark.parametrize(
    ("head", "seconds", "named"),
    [
        ("import os; os._exit(3)", 30.0, "exit code 3"),
        ("import sys; sys.exit(3)", 30.0, "line 9: SystemExit"),
        ("import no_such_module", 30.0, "line 9: ModuleNotFoundError"),
        # Even if the failure is caught.
        (
            "import socket\ntry:\n    socket.create_connection(('127.0.0.1', 9))\nexcept OSError:\n    pass",
            30.0,
            "127.0.0.1:9 (line 11)",
        ),
        ("time.sleep(0.3)", 0.2, ""),
        ("print('{}')", 30.0, None),  # what it prints does not disturb the report
    ],
)
def test_what_a_client_may_not_do_at_import_is_reported(
    tmp_path: Path, head: str, seconds: float, named: str | None
) -> None:
    """In a process of its own."""
    file = tmp_path / "client.py"
    file.write_text(faulty.source({"head": head}))
    problem = find_problem(ClientSource("echo", file), seconds)
    assert (problem is None, (named or "") in (problem or "")) == (named is None, True)


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


class RepeatedText(Payload):
    """A text and how often to repeat it."""

    text: str
    times: int = Field(default=1, ge=1, le=9)


class HangingClient(Client):
    """Repeats a text, and hangs for the text ``sleep``."""

    name, payload = "stubborn", RepeatedText

    def inference(self, payload: Any) -> object:
        if payload.text == "sleep":
            time.sleep(20)
        return payload.text * payload.times


@pytest.fixture
def hanging_client(tmp_path: Path) -> HangingClient:
    """The client; it needs no Triton."""
    return HangingClient(cast("Triton", None), tmp_path, tmp_path)


def test_a_hanging_call_is_reported_and_does_not_hang_the_check(
    hanging_client: HangingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "REQUEST_TIMEOUT_S", 0.5)
    caller = InProcessCaller(hanging_client)
    assert caller.ask(CheckRequest({"text": "yes", "times": 2})).result == "yesyes"
    assert caller.ask(CheckRequest({"text": "sleep"})).status == 0


def test_without_hypothesis_the_mutations_are_skipped_and_the_client_passes(
    hanging_client: HangingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    caller, sample = InProcessCaller(hanging_client), Sample({"text": "row"}, "row")
    finding = run_check("mutated payloads", lambda: check_mutations(caller, hanging_client, sample))
    report = ClientReport("stubborn", [finding])
    assert (finding.passed, report.passed) == (None, True)
    assert report.verdict() == "stubborn passes (not checked: mutated payloads)"
