"""What a client says about its readiness, also if it raises, hangs or says nothing that has a meaning."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sm.client import readiness
from sm.client.base import Client
from sm.client.readiness import MAX_SENTENCE, Readiness, ReadinessCheck, ask
from sm.errors import NotReady, StartError
from sm.plugins import discovery
from sm.run_state import Box, claim_unready_file, read_unready, unready_file, write_unready
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
    client._marks.readiness = ReadinessCheck(client, client.ready)
    return client


def fail(error: BaseException) -> Any:
    raise error


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box("id", tmp_path, tmp_path, 1, 2, 3, "nginx", 0)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "PATIENCE_S", 0.2)


@pytest.mark.parametrize(
    ("say", "reason"),
    [
        (lambda: True, ""),
        (lambda: np.True_, ""),
        (lambda: "two\nlines \x1b", "two lines"),
        (lambda: "\ud800", "?"),
        (lambda: "x" * 10_000, "x" * MAX_SENTENCE),
        (lambda: False, "says so"),
        (lambda: np.False_, "says so"),
        (lambda: "", "says so"),
        (lambda: None, "NoneType"),
        (lambda: 1, "int"),
        (list, "list"),
        (lambda: fail(NotReady("the store is away")), "the store is away"),
        (lambda: fail(ValueError("a secret")), "ValueError"),
        (lambda: fail(SystemExit(1)), "SystemExit"),
    ],
)
def test_anything_but_true_is_a_reason_that_names_the_model(say: Callable[[], Any], reason: str) -> None:
    client = saying(say)
    ask([client])
    assert bool(client._marks.unready) is bool(reason)
    assert reason in client._marks.unready
    assert ("'saying'" in client._marks.unready) is bool(reason)
    assert "secret" not in client._marks.unready
    assert len(client._marks.unready.encode()) < 2 * MAX_SENTENCE


def test_a_client_that_hangs_holds_one_thread_and_delays_no_other() -> None:
    go_on, asked = threading.Event(), []

    def hang() -> bool:
        asked.append(threading.current_thread())
        return go_on.wait(30)

    hanging, others = saying(hang), [saying(lambda: "away", str(number)) for number in range(3)]
    for _ in range(4):
        ask([hanging, *others])
    assert len(asked) == 1
    assert all(client._marks.unready for client in (hanging, *others))
    go_on.set()
    asked[0].join(30)
    ask([hanging])
    assert hanging._marks.unready == ""


def test_each_worker_publishes_and_one_that_is_gone_does_not_count(box: Box) -> None:
    answers: dict[str, object] = {"one": "away", "two": True}
    clients = [saying(lambda: answers["one"], "one"), saying(lambda: answers["two"], "two")]
    here = Readiness(lambda: clients, unready_file(box, os.getpid()))
    here.ask()
    Readiness(lambda: [saying(lambda: "x", "gone")], unready_file(box, 2**30)).ask()
    assert read_unready(box).keys() == {"one"}
    with pytest.raises(NotReady, match="away"):
        here.check("one")
    here.check("two")
    answers["one"] = True
    here.ask()
    assert read_unready(box) == {}
    here.check("one")


def test_the_newest_version_speaks_for_its_model_and_a_full_disk_stops_no_question(box: Box) -> None:
    (box.run / "readiness").touch()  # no folder can be made there
    old, new, away = saying(lambda: "old"), saying(lambda: True), saying(lambda: "away", "away")
    here = Readiness(lambda: [old, new, away], unready_file(box, os.getpid()))
    here.ask()
    assert list(here.reasons) == ["away"]
    assert (bool(old._marks.unready), bool(new._marks.unready)) == (True, False)


def no_space(file: int, offset: int, size: int) -> None:
    """Stand for a full disk: a file keeps the space that it has, and gets no more."""
    if os.fstat(file).st_size < offset + size:
        raise OSError(errno.ENOSPC, "full")


def test_with_a_full_disk_the_truth_is_published_in_the_space_that_the_worker_claimed(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: dict[str, object] = {"one": "away"}
    here = Readiness(lambda: [saying(lambda: answers["one"], "one")], unready_file(box, os.getpid()))
    claim_unready_file(box, os.getpid())
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    for says in ("away", True, "away again"):
        answers["one"] = says
        here.ask()
        assert bool(read_unready(box)) is (says is not True)
    many = [saying(lambda: "x" * 200, f"{number} {'n' * 200}") for number in range(2000)]
    Readiness(lambda: many, unready_file(box, os.getpid())).ask()
    assert 100 < len(read_unready(box)) < 2000
    # The next worker gets the space of one that has ended, and begins with nothing to say.
    unready_file(box, os.getpid()).rename(unready_file(box, "ended-1"))
    claim_unready_file(box, os.getpid())
    assert read_unready(box) == {}
    here.ask()
    here = Readiness(lambda: [saying(lambda: answers["one"], "one")], unready_file(box, os.getpid()))
    here.ask()
    assert read_unready(box).keys() == {"one"}
    with pytest.raises(OSError, match="full"):
        claim_unready_file(box, os.getppid())


def test_a_half_that_is_written_is_not_read(box: Box) -> None:
    """As json.loads would read a short new text before the end of a long old one."""
    claim_unready_file(box, os.getpid())
    file = unready_file(box, os.getpid())
    write_unready(file, {"one": "away"})
    whole = file.read_bytes()
    write_unready(file, {"two": "away"})
    with file.open("r+b") as opened:
        opened.write(whole[:12])
    assert read_unready(box) == {}
    write_unready(file, {"two": "away"})
    assert read_unready(box) == {"two": "away"}


@pytest.mark.parametrize(
    ("ready", "unready"),
    [
        ("ready = True", None),
        ("async def ready(self): return True", None),
        ("ready = property(lambda self: True)", None),
        ("def ready(self): return 'away'", True),
        ("def setup(self): self.ready = None", False),
    ],
)
def test_a_client_is_asked_at_its_start_if_it_has_the_method(
    tmp_path: Path, ready: str, unready: bool | None
) -> None:
    source = f"from sm.client import Client\n\nclass One(Client):\n    {ready}\n    def inference(self, payload): ...\n"
    write_client(tmp_path, "one", source)
    if unready is None:
        with pytest.raises(StartError, match="ready"):
            discovery.find_clients((tmp_path,), EmptyTriton(), Path("/nowhere"))
        return
    client = discovery.find_clients((tmp_path,), EmptyTriton(), Path("/nowhere")).clients["one"]
    assert (bool(client._marks.unready), client._marks.readiness is not None) == (unready, unready)
