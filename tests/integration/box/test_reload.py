"""``serve --reload``: a saved client is served, a broken one reports its error, and others are not disturbed."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import requests

from tests.support.boxes import RunningBox, retry_until_ok, wait_until
from tests.support.pages import code_blocks

CALLS = 12  # enough to reach each of two workers
OWN_METRICS, READINESS = "clients/own-metrics.md", "clients/readiness.md"
STEADY_CLIENT = """
from sm.client import Client, TextPayload

class Steady(Client):
    payload = TextPayload

    def inference(self, payload: TextPayload) -> str:
        return "steady"
"""
WORD_CLIENT = """
import time
from sm.client import Client, TextPayload

class Word(Client):
    payload = TextPayload

    def setup(self) -> None:
        self.labels = (self.folder / "labels.txt").read_text().split()

    def inference(self, payload: TextPayload) -> str:
        if payload.text == "slowly":
            go_on = self.folder.parent / "go-on"
            (self.folder.parent / "begun").touch()
            while not go_on.exists():
                time.sleep(0.02)
        return f"{self.labels[0]} {VERSION}"

VERSION = 1
"""
BROKEN_CLIENT = WORD_CLIENT.replace("def setup(self) -> None:", "def setup(self) -> None")


@pytest.fixture
def clients(team: Path) -> Path:
    return team / "clients"


@pytest.fixture
def box(team_box: RunningBox, clients: Path) -> RunningBox:
    """The box, once it serves two clients: the tests edit ``word`` and never ``steady``."""
    for name, text in (("steady", STEADY_CLIENT), ("word", WORD_CLIENT)):
        (clients / name).mkdir(exist_ok=True)
        (clients / name / "labels.txt").write_text("cat")
        (clients / name / "client.py").write_text(text)
    wait_until_live(team_box, "cat 1")
    return team_box


def text_of(box: RunningBox, model: str) -> str:
    return box.invoke(model, "a").text


def wait_until_live(box: RunningBox, expected: str, model: str = "word") -> None:
    """Wait until every worker answers so."""
    wait_until(
        lambda: all(expected in text_of(box, model) for _ in range(CALLS)),
        description=f"{expected} of {model}",
    )


@contextmanager
def nothing_else_disturbed(box: RunningBox) -> Iterator[None]:
    """Check that meanwhile the other client answers, ``/ping`` is 200 and Triton is not restarted."""
    wait_until_live(box, "steady", "steady")
    triton_before, stop = box.child("triton"), threading.Event()

    def observe() -> set[tuple[bool, int]]:
        observed = set()
        while not stop.wait(0.01):
            observed.add(("steady" in text_of(box, "steady"), box.ping()[0]))
        return observed

    with ThreadPoolExecutor(1) as pool:
        observations = pool.submit(observe)
        try:
            yield
        finally:
            stop.set()
    assert observations.result() == {(True, 200)}
    assert box.child("triton") == triton_before


def test_an_edit_is_served_and_disturbs_nothing_else(box: RunningBox, clients: Path) -> None:
    with nothing_else_disturbed(box):
        # The second within the same second, and of the same size.
        for version in (2, 3):
            text = WORD_CLIENT.replace("VERSION = 1", f"VERSION = {version}")
            (clients / "word" / "client.py").write_text(text)
            wait_until_live(box, f"cat {version}")
        (clients / "word" / "labels.txt").write_text("dog")
        wait_until_live(box, "dog 3")


def test_a_broken_edit_is_reported_once_and_ends_no_running_request(box: RunningBox, clients: Path) -> None:
    file, lines_before = clients / "word" / "client.py", len(box.log.read_text().splitlines())
    with nothing_else_disturbed(box), ThreadPoolExecutor(1) as pool:
        running = pool.submit(box.invoke, "word", "slowly")
        wait_until((clients / "begun").exists, description="the request's beginning")
        file.write_text(BROKEN_CLIENT)
        wait_until_live(box, "SyntaxError")
        (clients / "go-on").touch()
        assert running.result().json()["result"] == "cat 1"
        response = box.invoke("word", "a")
        file.write_text(WORD_CLIENT)
        wait_until_live(box, "cat 1")
    assert (response.status_code, response.json()["code"]) == (500, "client_failed")
    place = f"{file}: line {BROKEN_CLIENT.splitlines().index('    def setup(self) -> None') + 1}: SyntaxError"
    assert place in response.json()["error"]
    lines = [json.loads(line) for line in box.log.read_text().splitlines()[lines_before:]]
    # That of a request has it as its reason.
    assert len([line for line in lines if "SyntaxError" in line["message"]]) == 1


def test_a_new_client_is_served_and_a_removed_one_is_a_404(box: RunningBox, clients: Path) -> None:
    assert box.invoke("fresh", "a").status_code == 404
    with nothing_else_disturbed(box):
        (clients / "fresh").mkdir()
        (clients / "fresh" / "client.py").write_text(STEADY_CLIENT.replace('"steady"', '"hello"'))
        wait_until_live(box, "hello", "fresh")
        wait_until(lambda: "fresh.Request" in requests.get(f"{box.url}/openapi.json", timeout=30).text)
        shutil.rmtree(clients / "fresh")
        wait_until_live(box, "unknown_model", "fresh")


def test_a_clients_own_metrics_are_in_the_series_and_the_dashboards_data(
    box: RunningBox, clients: Path
) -> None:
    """The example of the page."""
    file, expected = clients / "moods.py", code_blocks(OWN_METRICS, "text")[0].splitlines()
    file.write_text(code_blocks(OWN_METRICS, "python")[0])
    wait_until(lambda: box.invoke("moods", {}).status_code == 422, description="the client")

    def own_lines() -> set[str]:
        lines = requests.get(f"{box.url}/metrics", timeout=30).text.splitlines()
        return {line for line in lines if line.startswith("trireme_client_")}

    def own_rows() -> dict[str, object]:
        rows = requests.get(f"{box.url}/dashboard/data", timeout=30).json()["box"]["own_metrics"]
        return {row["name"]: row["value"] for row in rows}

    for text in ("a good film", "a bad film", "a film"):
        retry_until_ok(partial(box.invoke, "moods", {"text": text}))
    wait_until(lambda: own_lines() >= {*expected}, description="the lines of the page")
    wait_until(lambda: own_rows().get("text_characters") == 3, description="the dashboard's data")


def test_a_client_that_is_not_ready_gets_no_request(box: RunningBox, clients: Path, tmp_path: Path) -> None:
    """The example of the page, with another place for what it needs."""
    licence, file = tmp_path / "licence.txt", clients / "licensed.py"
    licence.touch()
    text = code_blocks(READINESS, "python")[0].replace("/opt/licence.txt", str(licence))
    file.write_text(text)

    def wait_for(status: int) -> None:
        def statuses() -> set[int]:
            return {
                box.ping()[0],
                *(box.invoke("licensed", "a").status_code for _ in range(CALLS)),
            }

        wait_until(lambda: statuses() == {status}, description=f"{status} of licensed")

    wait_for(200)
    licence.unlink()
    wait_for(503)
    v2 = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    lines = b'{"modelname": "licensed", "payload": {"text": "a"}}\n' * 2
    for response in (
        box.invoke("licensed", "a"),
        box.invoke("licensed", [{"text": "a"}, {"text": "b"}]),
        box.send(lines, "application/jsonlines"),
        requests.post(f"{box.url}/v2/models/licensed/infer", json=v2, timeout=30),
        requests.get(f"{box.url}/v2/models/licensed/ready", timeout=30),
        requests.get(f"{box.url}/ping", timeout=30),
    ):
        assert (response.status_code, str(licence) in response.text) == (503, True), response.text
    # The others go on.
    assert "steady" in text_of(box, "steady")
    assert requests.get(f"{box.url}/v2/models/echo/ready", timeout=30).status_code == 200
    row = requests.get(f"{box.url}/models/licensed", timeout=30).json()
    assert (row["ready"], str(licence) in row["reason"]) == (False, True)
    file.unlink()
    wait_until_live(box, "unknown_model", "licensed")
