"""What a client says about its readiness, also if it raises, hangs or says nothing that has a meaning."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sm.client import readiness
from sm.client.base import Client
from sm.client.readiness import MAX_SENTENCE, Question, Readiness, ask
from sm.errors import NotReady, StartError
from sm.plugins import discovery
from sm.run_state import Box, read_unready, unready_file
from tests.support.boxes import wait_until
from tests.support.client_sources import EmptyTriton, write_client


class Saying(Client):
    """Says what the test wants."""

    say: Callable[[], Any]

    def ready(self) -> bool | str:
        return self.say()  # type: ignore[no-any-return]

    def inference(self, payload: object) -> object:
        return payload


def saying(say: Callable[[], Any], name: str = "saying") -> Saying:
    client = Saying(EmptyTriton(), Path(), Path())
    client.name, client.say = name, say
    client.readiness = Question(client, client.ready)
    return client


def fail(error: BaseException) -> Any:
    raise error


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box("id", tmp_path, tmp_path, 1, 2, 3, "nginx", 0)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "PATIENCE_S", 0.2)


@pytest.mark.parametrize("said", [True, np.True_])
def test_a_client_that_says_so_is_ready(said: object) -> None:
    client = saying(lambda: said)
    ask([client])
    assert client.unready == ""


@pytest.mark.parametrize(
    ("say", "reason"),
    [
        (lambda: "the store is away", "the store is away"),
        (lambda: "two\nlines \x1b", "two lines"),
        (lambda: "\ud800", "?"),
        (lambda: "x" * 10_000, "x" * MAX_SENTENCE),
        (lambda: False, "its client says so"),
        (lambda: np.False_, "its client says so"),
        (lambda: "", "its client says so"),
        (lambda: None, "returned a NoneType"),
        (lambda: 1, "returned a int"),
        (list, "returned a list"),
        (lambda: fail(NotReady("the store is away")), "the store is away"),
        (lambda: fail(ValueError("a secret")), "failed (ValueError)"),
        (lambda: fail(SystemExit(1)), "failed (SystemExit)"),
    ],
)
def test_anything_else_is_a_reason_that_names_the_model(say: Callable[[], Any], reason: str) -> None:
    client = saying(say)
    ask([client])
    assert client.unready.startswith("the model 'saying' is not ready: ")
    assert reason in client.unready
    assert "secret" not in client.unready
    assert len(client.unready.encode()) < 2 * MAX_SENTENCE


def test_a_client_that_hangs_holds_one_thread_and_delays_no_other() -> None:
    go_on, asked = threading.Event(), []

    def hang() -> bool:
        asked.append(threading.current_thread())
        return go_on.wait(30)

    hanging, others = saying(hang), [saying(lambda: "away", str(number)) for number in range(3)]
    for _ in range(4):
        ask([hanging, *others])
    assert len(asked) == 1
    assert "has not said" in hanging.unready
    assert all(other.unready for other in others)
    go_on.set()
    asked[0].join(30)
    ask([hanging])
    assert hanging.unready == ""


def test_a_client_that_changes_its_mind_is_believed_each_time() -> None:
    answers = iter([True, "away", True, False])
    client = saying(lambda: next(answers))
    seen = []
    for _ in range(4):
        ask([client])
        seen.append(bool(client.unready))
    assert seen == [False, True, False, True]


def test_each_worker_publishes_and_one_that_is_gone_does_not_count(box: Box) -> None:
    answers: dict[str, object] = {"one": "away", "two": True}
    clients = [saying(lambda: answers["one"], "one"), saying(lambda: answers["two"], "two")]
    here = Readiness(lambda: clients, unready_file(box, os.getpid()))
    here.ask()
    Readiness(lambda: [saying(lambda: "x", "gone")], unready_file(box, 2**30)).ask()
    assert read_unready(box) == {"one": "the model 'one' is not ready: away"}
    with pytest.raises(NotReady, match="away"):
        here.check("one")
    here.check("two")
    answers["one"] = True
    here.ask()
    assert read_unready(box) == {}
    here.check("one")


def test_the_newest_version_of_a_client_speaks_for_its_model(box: Box) -> None:
    old, new = saying(lambda: "old"), saying(lambda: True)
    here = Readiness(lambda: [old, new], unready_file(box, os.getpid()))
    here.ask()
    assert here.reasons == {}
    assert (bool(old.unready), bool(new.unready)) == (True, False)


def test_a_full_disk_stops_no_question(box: Box) -> None:
    (box.run / "readiness").touch()  # no folder can be made there
    here = Readiness(lambda: [saying(lambda: "away")], unready_file(box, os.getpid()))
    here.ask()
    assert list(here.reasons) == ["saying"]


READY_CLIENT = """
from sm.client import Client

class One(Client):
    {ready}

    def inference(self, payload):
        return 1
"""


@pytest.mark.parametrize(
    "ready",
    [
        "ready = True",
        "async def ready(self): return True",
        "@property\n    def ready(self): return True",
    ],
)
def test_what_is_not_a_method_is_an_error_at_start(tmp_path: Path, ready: str) -> None:
    write_client(tmp_path, "one", READY_CLIENT.format(ready=ready))
    with pytest.raises(StartError, match="ready"):
        discovery.find_clients((tmp_path,), EmptyTriton(), Path("/nowhere"))


def test_a_client_is_asked_before_its_first_request_if_it_has_the_method(tmp_path: Path) -> None:
    write_client(tmp_path, "away", READY_CLIENT.format(ready="def ready(self): return 'away'"))
    write_client(tmp_path, "plain", READY_CLIENT.format(ready="def setup(self): self.ready = None"))
    clients = discovery.find_clients((tmp_path,), EmptyTriton(), Path("/nowhere")).clients
    assert "away" in clients["away"].unready
    assert clients["plain"].unready == ""
    assert clients["plain"].readiness is None
    wait_until(lambda: not [each for each in threading.enumerate() if each.name == "ready"])
