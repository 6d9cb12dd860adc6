"""``serve --reload``: what is saved is served, and what is broken says so, while all else goes on."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from tests.support.boxes import RunningBox, running_box, wait_until
from tests.support.tritons import MODELS

WORKERS = 2

STEADY = """
from sm.client.base import Client, TextPayload

class Steady(Client):
    payload = TextPayload

    def inference(self, payload: TextPayload) -> str:
        return "steady"
"""
WORD = """
import time
from sm.client.base import Client, TextPayload

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
BROKEN = WORD.replace("def setup(self) -> None:", "def setup(self) -> None")
LINE = BROKEN.splitlines().index("    def setup(self) -> None") + 1


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clients: one is edited, the other never."""
    folder = tmp_path_factory.mktemp("clients")
    for name, text in (("steady", STEADY), ("word", WORD)):
        (folder / name).mkdir()
        (folder / name / "client.py").write_text(text)
    (folder / "word" / "labels.txt").write_text("cat")
    return folder


@pytest.fixture(scope="module")
def box(clients: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    folder = tmp_path_factory.mktemp("box")
    MODELS["echo"].write(folder / "repository" / "echo")
    with running_box(
        folder,
        folder / "repository",
        clients=(clients,),
        arguments="--reload",
        SAGEMAKER_MODEL_SERVER_WORKERS=str(WORKERS),
        TRIREME_LOG_FORMAT="text",
    ) as started:
        yield started


@pytest.fixture
def word(clients: Path) -> Iterator[Path]:
    """The edited client's file; mended afterwards."""
    file = clients / "word" / "client.py"
    yield file
    file.write_text(WORD)


def result(box: RunningBox, model: str = "word") -> object:
    response = box.invoke(model, "a")
    return response.json()["result"] if response.status_code == 200 else response.json()["error"]


def wait_until_live(box: RunningBox, expected: str, model: str = "word") -> float:
    """Wait until every worker answers so; seconds it took, which are 2 on a machine with nothing else to do."""
    started_at = time.monotonic()
    wait_until(
        lambda: all(expected in str(result(box, model)) for _ in range(6 * WORKERS)), description=expected
    )
    return time.monotonic() - started_at


@contextmanager
def undisturbed(box: RunningBox) -> Iterator[None]:
    """The other client, the box and Triton are well all the while."""
    triton, over, seen = box.child("triton"), threading.Event(), []

    def ask() -> None:
        while not over.wait(0.01):
            seen.append((result(box, "steady"), box.ping()[0]))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        over.set()
        asking.join()
    assert len(seen) > 5
    assert set(seen) == {("steady", 200)}
    assert box.child("triton") == triton


def test_the_terminal_says_that_reload_is_on_and_what_it_is_for(box: RunningBox) -> None:
    assert "reload is on" in box.log.read_text()
    assert "for development only" in box.log.read_text()


def test_an_edit_is_live_without_a_restart_and_nothing_else_is_touched(box: RunningBox, word: Path) -> None:
    wait_until_live(box, "cat 1")
    with undisturbed(box):
        word.write_text(WORD.replace("VERSION = 1", "VERSION = 2"))
        seconds = wait_until_live(box, "cat 2")
        # Within the same second, and of the same size.
        word.write_text(WORD.replace("VERSION = 1", "VERSION = 3"))
        wait_until_live(box, "cat 3")
    logging.getLogger(__name__).info("an edit was live after %.2f s", seconds)


def test_a_label_file_is_part_of_its_client(box: RunningBox, clients: Path) -> None:
    labels = clients / "word" / "labels.txt"
    try:
        labels.write_text("dog")
        wait_until_live(box, "dog 1")
    finally:
        labels.write_text("cat")
    wait_until_live(box, "cat 1")


def test_a_syntax_error_is_in_the_answer_and_once_in_the_terminal_until_it_is_mended(
    box: RunningBox, word: Path
) -> None:
    with undisturbed(box):
        before = len(box.log.read_text())
        word.write_text(BROKEN)
        wait_until_live(box, "SyntaxError")
        response = box.invoke("word", "a")
        said = box.wait_for_log("def setup(self) -> None\n")[before:]
        word.write_text(WORD)
        wait_until_live(box, "cat 1")
    assert (response.status_code, response.json()["code"]) == (500, "client_failed")
    assert f"{word}: line {LINE}: SyntaxError: expected ':'" in response.json()["error"]
    assert said.count("the client 'word' is broken") == 1
    assert f'File "{word}", line {LINE}' in said
    assert "def setup(self) -> None\n" in said


def test_a_client_whose_check_fails_says_what_it_lacks(box: RunningBox, word: Path) -> None:
    word.write_text(
        WORD.replace("    payload = TextPayload", "    payload = TextPayload\n    models = ('gone',)")
    )
    wait_until_live(box, "its model 'gone' is not served by Triton")
    assert f"{word}: its model 'gone' is not served by Triton" in box.log.read_text()


def test_a_request_under_way_ends_with_the_code_it_began_with(box: RunningBox, word: Path) -> None:
    wait_until_live(box, "cat 1")
    answers: list[requests.Response] = []
    asking = threading.Thread(target=lambda: answers.append(box.invoke("word", "slowly")))
    asking.start()
    clients = word.parent.parent
    wait_until((clients / "begun").exists, description="the request's beginning")
    word.write_text(BROKEN)
    wait_until_live(box, "SyntaxError")
    (clients / "go-on").touch()
    asking.join()
    assert (answers[0].status_code, answers[0].json()["result"]) == (200, "cat 1")


def test_a_new_client_appears_and_a_removed_one_goes(box: RunningBox, clients: Path) -> None:
    new = clients / "fresh"
    assert box.invoke("fresh", "a").status_code == 404
    with undisturbed(box):
        new.mkdir()
        (new / "client.py").write_text(STEADY.replace('"steady"', '"hello"'))
        wait_until_live(box, "hello", "fresh")
        wait_until(lambda: "fresh.Request" in requests.get(f"{box.url}/openapi.json", timeout=30).text)
        shutil.rmtree(new)
        wait_until_live(box, "no model 'fresh'", "fresh")
    assert box.invoke("fresh", "a").status_code == 404


@pytest.mark.parametrize("ends", ["raise KeyboardInterrupt", "raise SystemExit(1)"])
def test_a_client_that_tries_to_exit_at_a_reload_is_shown_and_the_next_edit_is_live(
    box: RunningBox, word: Path, ends: str
) -> None:
    """It ended the thread that looks for changes, for good."""

    def reload_errors() -> dict[str, str | None]:
        rows = requests.get(f"{box.url}/models", timeout=5).json()["models"]
        return {row["modelName"]: row.get("reload_error") for row in rows}

    wait_until_live(box, "cat 1")
    assert set(reload_errors().values()) == {None}
    before = len(box.log.read_text())
    with undisturbed(box):
        word.write_text(WORD.replace("        self.labels", f"        {ends}\n        self.labels"))
        wait_until(
            lambda: "the old version of 'word' serves" in box.log.read_text()[before:], description="the log"
        )
        wait_until(lambda: reload_errors()["word"], description="/models")
        wait_until_live(box, "cat 1")
        assert ends.split()[1].split("(")[0] in str(reload_errors()["word"])
        assert reload_errors()["steady"] is None
        word.write_text(WORD.replace("VERSION = 1", "VERSION = 2"))
        wait_until_live(box, "cat 2")
    wait_until(lambda: reload_errors()["word"] is None, description="/models without it")
