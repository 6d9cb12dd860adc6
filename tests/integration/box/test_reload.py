"""``serve --reload``: a saved client is served, a broken one reports its error, and others are not disturbed."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox, wait_until
from tests.support.pages import code_blocks

WORKERS = 2
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
BROKEN_LINE = BROKEN_CLIENT.splitlines().index("    def setup(self) -> None") + 1


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clients: the tests edit ``word`` and never ``steady``."""
    folder = tmp_path_factory.mktemp("clients")
    for name, text in (("steady", STEADY_CLIENT), ("word", WORD_CLIENT)):
        (folder / name).mkdir()
        (folder / name / "client.py").write_text(text)
    (folder / "word" / "labels.txt").write_text("cat")
    # The example of the page about a client's own metrics.
    (folder / "moods.py").write_text(code_blocks(OWN_METRICS, "python")[0])
    # That of the page about readiness, with another place for what it needs.
    licence = tmp_path_factory.mktemp("licence") / "licence.txt"
    licence.touch()
    text = code_blocks(READINESS, "python")[0].replace("/opt/licence.txt", str(licence))
    (folder / "licensed.py").write_text(text)
    return folder


@pytest.fixture
def licence(clients: Path) -> Iterator[Path]:
    """What the client ``licensed`` needs; restored afterwards."""
    file = Path(re.findall(r'"(.*licence.txt)"', (clients / "licensed.py").read_text())[0])
    yield file
    file.touch()


@pytest.fixture(scope="module")
def box(clients: Path, boxes: Boxes) -> Iterator[RunningBox]:
    with boxes.own(
        ("echo",), (clients,), arguments="--reload", SAGEMAKER_MODEL_SERVER_WORKERS=str(WORKERS)
    ) as started:
        yield started


@pytest.fixture
def word_file(clients: Path) -> Iterator[Path]:
    """The file of the client ``word``; restored afterwards."""
    file = clients / "word" / "client.py"
    yield file
    file.write_text(WORD_CLIENT)


def invoke_result(box: RunningBox, model: str = "word") -> object:
    response = box.invoke(model, "a")
    return response.json()["result"] if response.status_code == 200 else response.json()["error"]


def wait_until_live(box: RunningBox, expected: str, model: str = "word") -> None:
    """Wait until every worker answers so."""
    wait_until(
        lambda: all(expected in str(invoke_result(box, model)) for _ in range(6 * WORKERS)),
        description=expected,
    )


@contextmanager
def nothing_else_disturbed(box: RunningBox) -> Iterator[None]:
    """Check that meanwhile the other client answers, ``/ping`` is 200 and Triton is not restarted."""
    triton_before, stop, observations = box.child("triton"), threading.Event(), []

    def observe() -> None:
        while not stop.wait(0.01):
            observations.append((invoke_result(box, "steady"), box.ping()[0]))

    observer = threading.Thread(target=observe)
    observer.start()
    try:
        yield
        wait_until(lambda: len(observations) > 5, description="some observations")
    finally:
        stop.set()
        observer.join()
    assert set(observations) == {("steady", 200)}
    assert box.child("triton") == triton_before


def test_an_edit_is_served_without_a_restart_and_disturbs_nothing_else(
    box: RunningBox, word_file: Path
) -> None:
    wait_until_live(box, "cat 1")
    with nothing_else_disturbed(box):
        word_file.write_text(WORD_CLIENT.replace("VERSION = 1", "VERSION = 2"))
        wait_until_live(box, "cat 2")
        # Within the same second, and of the same size.
        word_file.write_text(WORD_CLIENT.replace("VERSION = 1", "VERSION = 3"))
        wait_until_live(box, "cat 3")


def test_an_edited_label_file_reloads_its_client(box: RunningBox, clients: Path) -> None:
    labels = clients / "word" / "labels.txt"
    try:
        labels.write_text("dog")
        wait_until_live(box, "dog 1")
    finally:
        labels.write_text("cat")
    wait_until_live(box, "cat 1")


def test_a_syntax_error_is_in_the_response_and_once_in_the_log_until_it_is_mended(
    box: RunningBox, word_file: Path
) -> None:
    with nothing_else_disturbed(box):
        lines_before = len(box.log.read_text().splitlines())
        word_file.write_text(BROKEN_CLIENT)
        wait_until_live(box, "SyntaxError")
        response = box.invoke("word", "a")
        reports = wait_until(
            lambda: [
                line["message"]
                for line in map(json.loads, box.log.read_text().splitlines()[lines_before:])
                if "SyntaxError" in line["message"]  # that of a request has it as its reason
            ],
            description="the report in the log",
        )
        word_file.write_text(WORD_CLIENT)
        wait_until_live(box, "cat 1")
    assert (response.status_code, response.json()["code"]) == (500, "client_failed")
    assert f"{word_file}: line {BROKEN_LINE}: SyntaxError" in response.json()["error"]
    (report,) = reports
    assert f'File "{word_file}", line {BROKEN_LINE}' in report


def test_a_running_request_finishes_with_the_code_it_started_with(box: RunningBox, word_file: Path) -> None:
    wait_until_live(box, "cat 1")
    responses: list[requests.Response] = []
    caller = threading.Thread(target=lambda: responses.append(box.invoke("word", "slowly")))
    caller.start()
    clients = word_file.parent.parent
    wait_until((clients / "begun").exists, description="the request's beginning")
    word_file.write_text(BROKEN_CLIENT)
    wait_until_live(box, "SyntaxError")
    (clients / "go-on").touch()
    caller.join()
    assert (responses[0].status_code, responses[0].json()["result"]) == (200, "cat 1")


def test_a_new_client_is_served_and_a_removed_one_is_a_404(box: RunningBox, clients: Path) -> None:
    new_folder = clients / "fresh"
    assert box.invoke("fresh", "a").status_code == 404
    with nothing_else_disturbed(box):
        new_folder.mkdir()
        (new_folder / "client.py").write_text(STEADY_CLIENT.replace('"steady"', '"hello"'))
        wait_until_live(box, "hello", "fresh")
        wait_until(lambda: "fresh.Request" in requests.get(f"{box.url}/openapi.json", timeout=30).text)
        shutil.rmtree(new_folder)
        wait_until(lambda: {box.invoke("fresh", "a").status_code for _ in range(6 * WORKERS)} == {404})


def own_lines(box: RunningBox) -> set[str]:
    text = requests.get(f"{box.url}/metrics", timeout=30).text
    return {line for line in text.splitlines() if line.startswith("trireme_client_")}


def test_a_clients_own_metrics_are_summed_over_workers_and_survive_a_reload(
    box: RunningBox, clients: Path
) -> None:
    for text in ("a good film", "a bad film", "a film"):
        assert box.invoke("moods", {"text": text}).status_code == 200
    expected = code_blocks(OWN_METRICS, "text")[0].splitlines()
    # A scrape may be as old as the last one.
    wait_until(lambda: own_lines(box) >= {*expected}, description="the lines of the page")
    names = {line.partition(" ")[0] for line in own_lines(box)}

    def own_rows() -> dict[str, object]:
        rows = requests.get(f"{box.url}/dashboard/data", timeout=30).json()["box"]["own_metrics"]
        return {row["name"]: row["value"] for row in rows}

    wait_until(lambda: own_rows().get("text_characters") == 3, description="the dashboard's data")

    file = clients / "moods.py"
    file.write_text(file.read_text().replace('"none"', '"neither"'))
    wait_until_live(box, "neither", "moods")
    counted = expected[0].replace(" 1.0", " 2.0")
    assert box.invoke("moods", {"text": "fine"}).json()["result"] == "glad"
    wait_until(lambda: counted in own_lines(box), description="the count after the reload")
    assert {line.partition(" ")[0] for line in own_lines(box)} == names

    # Another kind of metric by the same name would spoil the series of the first.
    file.write_text(file.read_text().replace("metrics.counter", "metrics.gauge"))
    wait_until_live(box, "'moods_found' is a gauge", "moods")


def wait_for_licensed(box: RunningBox, status: int) -> None:
    """Wait until all workers answer so, and ``/ping`` too."""
    wait_until(
        lambda: (
            box.ping()[0] == status
            and all(box.invoke("licensed", "a").status_code == status for _ in range(6 * WORKERS))
        ),
        description=f"{status} of licensed",
    )


def test_a_client_that_is_not_ready_gets_no_request_and_ping_says_why(
    box: RunningBox, clients: Path, licence: Path
) -> None:
    wait_for_licensed(box, 200)
    licence.unlink()
    wait_for_licensed(box, 503)
    reason = f"there is no licence at {licence}"
    v2 = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}
    line = json.dumps({"modelname": "licensed", "payload": {"text": "a"}})
    lines = {"Content-Type": "application/jsonlines"}
    for response in (
        box.invoke("licensed", "a"),
        box.invoke("licensed", [{"text": "a"}, {"text": "b"}]),
        requests.post(f"{box.url}/invocations", f"{line}\n{line}\n", headers=lines, timeout=30),
        requests.post(f"{box.url}/v2/models/licensed/infer", json=v2, timeout=30),
        requests.get(f"{box.url}/v2/models/licensed/ready", timeout=30),
        requests.get(f"{box.url}/ping", timeout=30),
    ):
        assert response.status_code == 503, response.text
        assert reason in response.text
    # The others go on.
    assert invoke_result(box, "steady") == "steady"
    assert requests.get(f"{box.url}/v2/models/echo/ready", timeout=30).status_code == 200
    row = requests.get(f"{box.url}/models/licensed", timeout=30).json()
    assert (row["ready"], reason in row["reason"]) == (False, True)

    # The next version of the client hangs: workers wait two seconds for it, and serve.
    file = clients / "licensed.py"
    text = file.read_text()
    waiting = text.replace("return LICENCE", "time.sleep(30)\n        return LICENCE")
    file.write_text(waiting.replace("from pathlib", "import time\nfrom pathlib"))
    wait_until(lambda: "has not said" in box.invoke("licensed", "a").text, description="the hanging version")
    assert invoke_result(box, "steady") == "steady"
    # The one after it is ready at once.
    licence.touch()
    file.write_text(text)
    wait_for_licensed(box, 200)
