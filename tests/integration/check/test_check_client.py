"""``sm check-client``: its table, its checks against a running box, and its error messages."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import Field

from sm.client import Client, Payload, Triton
from tests.integration.check import faulty_clients as faulty
from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, free_port
from tests.support.check_client import check_client
from tests.support.sm_command import run_sm
from trireme_tools.check import calls
from trireme_tools.check.calls import InProcessCaller, Request
from trireme_tools.check.check_report import Report
from trireme_tools.check.client_checks import Sample, check_mutations
from trireme_tools.check.examination import run_check


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    faulty.write_clients(folder)
    return folder


@pytest.fixture
def box(boxes: Boxes, project: Path) -> RunningBox:
    """A box with one client without a fault and one with a fault."""
    names = ("sound", "unhandled_null")
    sources = {f"{name}/client.py": (project / "clients" / name / "client.py").read_text() for name in names}
    return boxes(project / "model", (sources,))


class RepeatedText(Payload):
    """A text and how often to repeat it."""

    text: str
    times: int = Field(default=1, ge=1, le=9)


class HangingClient(Client):
    """Retries a text, and hangs for the text ``sleep``."""

    name, payload = "stubborn", RepeatedText

    def inference(self, payload: Any) -> object:
        if payload.text == "sleep":
            time.sleep(20)
        return payload.text * payload.times


def hanging_client(folder: Path) -> HangingClient:
    """The client; it needs no Triton."""
    return HangingClient(cast("Triton", None), folder, folder)


@pytest.mark.exhaustive
def test_a_running_box_gets_the_same_checks_and_a_fault_is_found_through_it(
    box: RunningBox, project: Path
) -> None:
    report = check_client(project, "sound", "--url", box.url)
    assert report.status == 0, report.failed
    passed = {row["check"]: row["passed"] for row in report.report["checks"]}
    assert [name for name, value in passed.items() if value is None] == ["its input", "memory"]
    assert len(passed) == 7
    assert list(report.stages) == ["decode", "preprocess", "infer", "postprocess"]
    report = check_client(project, "unhandled_null", "--url", box.url)
    assert (report.status, set(report.failed)) == (1, {"mutated payloads"})


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


def test_a_hanging_call_is_reported_and_does_not_hang_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "REQUEST_TIMEOUT_S", 0.5)
    caller = InProcessCaller(hanging_client(tmp_path))
    assert caller.ask(Request({"text": "yes", "times": 2})).result == "yesyes"
    assert caller.ask(Request({"text": "sleep"})).status == 0


def test_without_hypothesis_the_mutations_are_skipped_and_the_client_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    client = hanging_client(tmp_path)
    sample = Sample({"text": "row"}, "row")
    finding = run_check("mutated payloads", lambda: check_mutations(InProcessCaller(client), client, sample))
    report = Report("stubborn", [finding])
    assert (finding.passed, report.passed) == (None, True)
    assert report.verdict() == "stubborn passes (not checked: mutated payloads)"
