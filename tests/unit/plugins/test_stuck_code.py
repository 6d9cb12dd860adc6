"""A client whose code never returns fails, and others are made meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sm.errors import DeadlinePassed, StartError
from sm.invocation import Invocation, running
from sm.plugins import code_imports, stuck_code
from sm.plugins.checks import UncheckedClient
from sm.plugins.loading import load
from sm.plugins.sources import ClientSource
from sm.plugins.stuck_code import MakingLimit
from tests.support.boxes import wait_until
from tests.support.client_sources import EmptyTriton

CLIENT = """
from sm.client import Client

class One(Client):
    def inference(self, payload): ...
"""
STUCK = """
import threading
(threading.current_thread()).released.wait(30)
"""


class Making(threading.Thread):
    """Makes a client, which waits until it is released."""

    def __init__(self, source: ClientSource) -> None:
        super().__init__(daemon=True)
        self.source, self.released = source, threading.Event()

    def run(self) -> None:
        with suppress(StartError):  # it was loaded again meanwhile
            load(self.source, EmptyTriton(), Path())


class Setup(Making):
    """Makes a client, whose setup() waits until it is released."""

    is_set_up = False

    def run(self) -> None:
        client = load(self.source, EmptyTriton(), Path())
        UncheckedClient(client, self.source, EmptyTriton()).check()
        self.is_set_up = True


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The signals that this process sends itself."""
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    monkeypatch.setattr(stuck_code, "abandoned", set())
    monkeypatch.setattr(code_imports, "_turn", code_imports.Turn())
    monkeypatch.setattr(code_imports, "making_limit", MakingLimit(tmp_path / "stuck", 0.3, 3600, 1))
    yield sent
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):  # it would end a worker that does not end by itself
            thread.cancel()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], ClientSource]:
    def write(name: str, code: str) -> ClientSource:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(code)
        return ClientSource(file.stem, file, "script" if file.stem == "inference" else "file")

    return write


@pytest.mark.parametrize("name", ["stuck/client.py", "stuck.py"])
def test_one_that_never_ends_fails_and_others_are_made(
    name: str, write: Callable[[str, str], ClientSource], killed: list[int]
) -> None:
    stuck = Making(write(name, STUCK + CLIENT))
    stuck.start()
    wait_until(lambda: "stuck" in str(code_imports._turn.folders) or name == "stuck.py", description="it")
    assert load(write("other/client.py", CLIENT), EmptyTriton(), Path()).name == "client"
    wait_until(lambda: killed, description="the end of the worker")
    assert killed == [signal.SIGTERM]
    assert stuck_code.abandoned == {stuck.ident}
    for _ in range(2):  # as in the next worker
        with pytest.raises(StartError, match="0.3 s"):
            load(stuck.source, EmptyTriton(), Path())
    stuck.released.set()  # or Python's own lock of the module makes the next import wait
    stuck.join(10)
    assert not stuck.is_alive()
    stuck.source.file.write_text(CLIENT + "# an edited file")
    load(stuck.source, EmptyTriton(), Path())
    load(write("third/client.py", CLIENT), EmptyTriton(), Path())
    time.sleep(0.5)
    assert killed == [signal.SIGTERM]


SLOW = """
import threading
from sm.client import Client

class One(Client):
    def setup(self):
        threading.current_thread().released.wait(30)

    def inference(self, payload): ...
"""
SCRIPT = """
import threading

def model_fn(folder):
    threading.current_thread().released.wait(30)
"""


@pytest.mark.parametrize(("name", "code"), [("slow/client.py", SLOW), ("slow/inference.py", SCRIPT)])
def test_a_model_that_takes_long_to_load_is_waited_for_while_others_are_made(
    name: str, code: str, write: Callable[[str, str], ClientSource], killed: list[int]
) -> None:
    """Gigabytes take longer than a request: only an import that takes so long is stuck."""
    slow, other = (Setup(write(folder + name, code)) for folder in ("", "other_"))
    slow.start()
    wait_until(lambda: code_imports._turn.folders, description="it")
    fine = write("fine/client.py", CLIENT)
    load(fine, EmptyTriton(), Path())  # after the limit
    assert not killed
    other.start()  # one more than may take long: others would have no thread
    wait_until(lambda: killed, description="the end of the worker")
    assert stuck_code.abandoned == {other.ident}
    for each in (slow, other):
        each.released.set()
        each.join(10)
    assert slow.is_set_up
    load(slow.source, EmptyTriton(), Path())
    with pytest.raises(StartError):
        load(other.source, EmptyTriton(), Path())


def test_a_model_that_never_loads_fails_in_the_end(
    write: Callable[[str, str], ClientSource], killed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck_code, "LOADING_S", 1)
    slow = Setup(write("slow/client.py", SLOW))
    slow.start()
    wait_until(lambda: killed, description="the end of the worker")
    assert stuck_code.abandoned == {slow.ident}
    slow.released.set()
    slow.join(10)


def test_a_request_that_waits_for_another_client_has_its_deadline_and_is_no_failure_of_its_own(
    write: Callable[[str, str], ClientSource], killed: list[int], tmp_path: Path
) -> None:
    code_imports.making_limit = MakingLimit(tmp_path / "stuck", 60, 3600, 1)
    stuck = Making(write("stuck/client.py", STUCK + CLIENT))
    stuck.start()
    wait_until(lambda: code_imports._turn.folders, description="its turn")
    with running(Invocation(time.monotonic() + 0.2)), pytest.raises(DeadlinePassed):
        load(write("other/client.py", CLIENT), EmptyTriton(), Path())
    stuck.released.set()
    stuck.join(10)
    load(write("other/client.py", CLIENT), EmptyTriton(), Path())
    assert not killed
