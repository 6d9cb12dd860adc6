"""Sessions are kept in files that every worker sees, and are removed when they are closed or expire."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from sm.client import sessions as module
from sm.client.sessions import SWEEP_INTERVAL_S, Sessions
from sm.errors import BadInput, OutOfMemory, Overloaded
from sm.polling import stop_all
from sm.router.app import sessions_of
from sm.run_state import Box
from sm.settings import Settings
from tests.support.boxes import wait_until

LIFETIME_S, MAX_SESSIONS = 100.0, 20_000
#: Makes the sessions of a worker, with at most so many in all workers.
Worker = Callable[..., Sessions]


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def count_rows(home: Path) -> tuple[int, int]:
    """Return how many sessions and values a folder's database has."""
    with contextlib.closing(sqlite3.connect(home / module.FILE)) as database:
        queries = (f"SELECT COUNT(*) FROM {table}" for table in ("sessions", "items"))
        sessions, values = (database.execute(query).fetchone()[0] for query in queries)
    return sessions, values


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder that sessions are kept in; ``second`` beside it is the next one."""
    return tmp_path / "first"


@pytest.fixture
def worker(home: Path, clock: Clock) -> Iterator[Worker]:
    """Closes the databases with the test. A worker keeps its own, and Python 3.13 warns of those left open."""
    made: list[Sessions] = []

    def make(limit: int = MAX_SESSIONS, first: Path = home) -> Sessions:
        made.append(Sessions((first, home.with_name("second")), LIFETIME_S, limit, clock))
        return made[-1]

    yield make
    for sessions in made:
        if sessions._connection is not None:
            sessions._connection.close()


@pytest.fixture
def sessions(worker: Worker) -> Sessions:
    return worker()


def test_a_session_is_a_mapping(sessions: Sessions) -> None:
    session = sessions.open("caller")
    keys = ["", ".", "..", "a/b", "../up", "\n", "ключ", "a b"]
    session.update({key: key.encode() for key in keys})
    assert dict(session) == {key: key.encode() for key in keys}
    del session["a/b"]
    assert ("a/b" in session, len(session)) == (False, len(keys) - 1)
    with pytest.raises(KeyError):
        del session["a/b"]


def test_a_session_expires_even_if_it_is_used(sessions: Sessions, clock: Clock, home: Path) -> None:
    session = sessions.open("caller")
    assert session.expires == clock.now + LIFETIME_S
    clock.now += LIFETIME_S - 1
    sessions.get(session.id)["key"] = b"value"
    assert sessions.get(session.id).expires == session.expires
    clock.now += 1
    with pytest.raises(BadInput):
        sessions.get(session.id)
    assert count_rows(home) == (0, 0)


def test_a_closed_session_leaves_nothing_and_cannot_be_used(sessions: Sessions, home: Path) -> None:
    session = sessions.open("caller")
    session["key"] = b"value"
    sessions.close(session.id)
    assert count_rows(home) == (0, 0)
    for operation in (sessions.get, sessions.close):
        with pytest.raises(BadInput):
            operation(session.id)
    with pytest.raises(BadInput):
        session["key"] = b"late"
    assert dict(session) == {}


def test_over_the_limit_the_error_says_when_one_expires(worker: Worker, clock: Clock, home: Path) -> None:
    workers = [worker(2), worker(2)]
    first = workers[0].open("caller")
    clock.now += 30
    workers[1].open("caller")
    for seconds_later in (0, 20, 49):
        clock.now = 1_000_030.0 + seconds_later
        for each in workers:
            with pytest.raises(Overloaded) as excinfo:
                each.open("caller")
            assert excinfo.value.retry_after == LIFETIME_S - 30 - seconds_later
    workers[1].close(first.id)
    workers[0].open("caller")
    with pytest.raises(Overloaded):
        workers[1].open("caller")
    clock.now += LIFETIME_S
    workers[1].open("caller")
    assert count_rows(home) == (1, 0)


def open_all(workers: list[Sessions], owner: str) -> list[str]:
    """Open sessions, each at the next worker, until one is refused."""
    opened: list[str] = []
    with contextlib.suppress(Overloaded):
        while True:
            opened.append(workers[len(opened) % len(workers)].open(owner).id)
    return opened


def test_a_caller_can_open_nine_of_ten_sessions_and_everybody_one_while_there_is_one(worker: Worker) -> None:
    workers = [worker(100) for _ in range(3)]
    assert [len(open_all(workers, f"mallory {number}")) for number in range(4)] == [90, 9, 1, 0]


def test_a_caller_over_the_share_learns_when_its_next_session_expires(worker: Worker, clock: Clock) -> None:
    workers = [worker(100) for _ in range(3)]
    workers[0].open("alice")
    clock.now += 30
    opened = open_all(workers, "mallory")
    clock.now += 20
    with pytest.raises(Overloaded) as excinfo:
        workers[0].open("mallory")
    assert excinfo.value.retry_after == LIFETIME_S - 20
    workers[1].close(opened[0])
    assert len(open_all(workers, "mallory")) == 1
    clock.now += LIFETIME_S - 20
    # All have expired but the last one.
    assert len(open_all(workers, "mallory")) == 89


def test_concurrent_opens_never_exceed_the_limit(worker: Worker, home: Path) -> None:
    workers = [worker(30) for _ in range(4)]

    def try_to_open(number: int) -> bool:
        try:
            workers[number % 4].open(f"caller {number}")
        except Overloaded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(try_to_open, range(80))) == 30
    assert count_rows(home) == (30, 0)


def test_two_workers_that_sweep_keep_every_open_session(worker: Worker, clock: Clock, home: Path) -> None:
    workers = [worker(), worker()]
    for _ in range(300):
        workers[0].open("caller")["key"] = b"value"
    clock.now += LIFETIME_S + SWEEP_INTERVAL_S
    open_session = workers[1].open("caller")
    with ThreadPoolExecutor(2) as pool:
        for sweep in [pool.submit(each.sweep) for each in workers]:
            sweep.result()
    assert count_rows(home) == (1, 0)
    assert workers[0].get(open_session.id).id == open_session.id


def test_expired_sessions_are_removed_without_another_being_opened(
    sessions: Sessions, clock: Clock, home: Path
) -> None:
    sessions.seconds = 1.0
    sessions.open("caller")["key"] = b"value"
    clock.now += 2
    sessions.start_sweeping()
    wait_until(lambda: count_rows(home) == (0, 0), description="an empty store")
    stop_all(10)


@pytest.mark.parametrize(
    "session_id",
    ["", ".", "..", "../first", "/etc", "a/b", "x" * 5000, "NEW_SESSION", "0" * 36, "overflow", "a\0b"],
)
def test_an_invalid_id_is_not_a_session(sessions: Sessions, session_id: str) -> None:
    sessions.open("caller")
    with pytest.raises(BadInput) as excinfo:
        sessions.get(session_id)
    assert len(str(excinfo.value)) < 200


@pytest.mark.exhaustive
def test_opening_a_session_beside_10_000_others_takes_milliseconds(worker: Worker, clock: Clock) -> None:
    """In /dev/shm, the default place. SQLite takes a few milliseconds for 200,000 steps; it needs 60,000."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        sessions = worker(first=Path(folder))
        open_sessions = [sessions.open("caller") for _ in range(10_000)]
        steps: list[None] = []
        assert sessions._connection is not None
        sessions._connection.set_progress_handler(lambda: steps.append(None), 1000)
        sessions.open("caller")
        sessions._connection.set_progress_handler(None, 0)
        assert len(steps) < 200
        assert sessions.get(open_sessions[5000].id).id == open_sessions[5000].id
        clock.now += LIFETIME_S
        sessions.sweep()
        assert count_rows(Path(folder)) == (0, 0)


def test_concurrent_writes_never_leave_a_partial_value(sessions: Sessions) -> None:
    session, stop = sessions.open("caller"), threading.Event()
    values = [bytes([number]) * 200_000 for number in range(4)]
    session["key"] = values[0]

    def write(value: bytes) -> None:
        while not stop.is_set():
            session["key"] = value

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, value) for value in values]
        try:
            assert all(session["key"] in values for _ in range(500))
        finally:
            stop.set()
        for writer in writers:
            writer.result()


def test_of_two_concurrent_closes_one_succeeds_and_one_fails(sessions: Sessions) -> None:
    def close(session_id: str) -> bool:
        try:
            sessions.close(session_id)
        except BadInput:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        for _ in range(50):
            assert sum(pool.map(close, [sessions.open("caller").id] * 2)) == 1


def test_workers_agree_on_the_second_folder_if_there_is_no_first(worker: Worker, home: Path) -> None:
    home.write_text("a file is where the folder should be")
    session = worker().open("caller")
    session["key"] = b"value"
    assert count_rows(home.with_name("second")) == (1, 1)
    home.unlink()
    other = worker()
    assert other.get(session.id)["key"] == b"value"
    other.get(session.id)["key"] = b"another"
    assert session["key"] == b"another"
    second_session = other.open("caller")
    assert worker().get(second_session.id).id == second_session.id
    with pytest.raises(OutOfMemory):
        Sessions((Path("/proc/none"),), LIFETIME_S, MAX_SESSIONS).open("caller")


def test_a_database_that_cannot_be_used_is_closed_again(worker: Worker, home: Path) -> None:
    home.mkdir()
    (home / module.FILE).write_bytes(b"no database")
    opened: list[Path] = []
    with pytest.raises(OutOfMemory) as held:  # with its traceback, which keeps the connection
        worker().open("caller")
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            opened.append(descriptor.readlink())
    assert held.value.__cause__ and not [path for path in opened if path.is_relative_to(home)]


def test_a_store_that_a_stalled_worker_holds_is_a_429_and_not_a_lack_of_room(
    monkeypatch: pytest.MonkeyPatch, sessions: Sessions, home: Path
) -> None:
    monkeypatch.setattr(module, "LOCK_TIMEOUT_S", 0.1)
    session = sessions.open("caller")
    stalled = sqlite3.connect(home / module.FILE, isolation_level=None)
    stalled.execute("BEGIN EXCLUSIVE")
    with pytest.raises(Overloaded):
        session["history"] = b"one"
    stalled.close()
    session["history"] = b"one"
    assert dict(session) == {"history": b"one"}


def test_values_leave_a_quarter_of_a_disk_free_at_most_64_mib_and_go_to_the_second_folder(
    worker: Worker, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """integration/box/test_full_disk.py fills two real disks."""
    disks = {home: (400, 300), home.with_name("second"): (2**30, 2**26 + 2000)}
    monkeypatch.setattr(
        "os.statvfs",
        lambda folder: SimpleNamespace(f_frsize=1, f_blocks=disks[folder][0], f_bavail=disks[folder][1]),
    )
    session = worker().open("caller")
    for size, in_first in ((200, 1), (201, 0), (2000, 0), (5, 1), (300, 0)):
        session["key"] = b"x" * size
        assert worker().get(session.id)["key"] == b"x" * size
        assert (count_rows(home)[1], len(session)) == (in_first, 1)
    with pytest.raises(OutOfMemory):
        session["key"] = b"y" * 2001
    assert dict(session) == {"key": b"x" * 300}


def test_lifetime_folder_and_number_are_those_of_the_settings(home: Path, tmp_path: Path) -> None:
    box = Box("sessions", tmp_path, tmp_path, 1, 2, 3, "nginx", 0)
    settings = Settings(sessions=True, sessions_path=home, sessions_expiration=20, max_sessions=1)
    sessions = sessions_of(settings, box)
    assert sessions is not None
    assert 0 < sessions.open("caller").expires - time.time() <= 20
    assert count_rows(home)[0] == 1
    with pytest.raises(Overloaded):
        sessions.open("another")
    assert sessions._connection is not None
    sessions._connection.close()
    assert sessions_of(Settings(), box) is None
