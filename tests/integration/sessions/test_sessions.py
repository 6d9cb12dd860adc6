"""Sessions are kept in files that every worker sees, and are removed when they are closed or expire."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from sm.client import sessions as module
from sm.client.sessions import SWEEP_INTERVAL_S, Sessions
from sm.errors import BadInput, OutOfMemory, Overloaded
from sm.settings import HERE
from tests.integration.sessions.session_rows import count_rows
from tests.support.boxes import wait_until

pytestmark = pytest.mark.core

LIFETIME_S, MAX_SESSIONS = 100.0, 20_000


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(tmp_path: Path, clock: Clock) -> Sessions:
    return sessions_of_a_worker(tmp_path, clock)


#: Of the running test.
_MADE: list[Sessions] = []


@pytest.fixture(autouse=True)
def closed_databases() -> Iterator[None]:
    """Close them with the test. A worker keeps its own until it ends, and Python 3.13 warns of those left open."""
    yield
    while _MADE:
        if (connection := _MADE.pop()._connection) is not None:
            connection.close()


def sessions_of_a_worker(tmp_path: Path, clock: Clock, limit: int = MAX_SESSIONS) -> Sessions:
    return closed_later(Sessions((tmp_path / "first", tmp_path / "second"), LIFETIME_S, limit, clock))


def closed_later(sessions: Sessions) -> Sessions:
    _MADE.append(sessions)
    return sessions


def test_a_value_set_by_one_worker_is_seen_by_another(
    sessions: Sessions, tmp_path: Path, clock: Clock
) -> None:
    session = sessions.open("caller")
    session["history"] = b"one"
    same_session = sessions_of_a_worker(tmp_path, clock).get(session.id)
    assert dict(same_session) == {"history": b"one"}
    same_session["history"] = b"two"
    assert session["history"] == b"two"


def test_a_session_is_a_mapping(sessions: Sessions) -> None:
    session = sessions.open("caller")
    keys = ["", ".", "..", "a/b", "../up", "\n", "ключ", "a b"]
    session.update({key: key.encode() for key in keys})
    assert sorted(session) == sorted(keys)
    assert all(session[key] == key.encode() for key in keys)
    del session["a/b"]
    assert "a/b" not in session
    assert len(session) == len(keys) - 1
    with pytest.raises(KeyError):
        del session["a/b"]


def test_a_session_expires_at_a_fixed_time_even_if_it_is_used(
    sessions: Sessions, clock: Clock, tmp_path: Path
) -> None:
    session = sessions.open("caller")
    assert session.expires == clock.now + LIFETIME_S
    clock.now += LIFETIME_S - 1
    sessions.get(session.id)["key"] = b"value"
    assert sessions.get(session.id).expires == session.expires
    clock.now += 1
    with pytest.raises(BadInput):
        sessions.get(session.id)
    assert count_rows(tmp_path / "first") == (0, 0)


def test_a_closed_session_leaves_nothing_and_cannot_be_used(sessions: Sessions, tmp_path: Path) -> None:
    session = sessions.open("caller")
    session["key"] = b"value"
    sessions.close(session.id)
    assert count_rows(tmp_path / "first") == (0, 0)
    for operation in (sessions.get, sessions.close):
        with pytest.raises(BadInput):
            operation(session.id)
    with pytest.raises(BadInput):
        session["key"] = b"late"
    assert dict(session) == {}


def test_over_the_limit_no_session_is_opened_until_one_is_closed_or_expires(
    tmp_path: Path, clock: Clock
) -> None:
    sessions, other_worker = (sessions_of_a_worker(tmp_path, clock, 5) for _ in range(2))
    open_sessions = [
        worker.open("caller") for worker in (sessions, other_worker, sessions, other_worker, sessions)
    ]
    for worker in (sessions, other_worker):
        with pytest.raises(Overloaded, match="TRIREME_MAX_SESSIONS"):
            worker.open("caller")
    other_worker.close(open_sessions[0].id)
    sessions.open("caller")
    with pytest.raises(Overloaded):
        other_worker.open("caller")
    clock.now += LIFETIME_S
    other_worker.open("caller")
    assert count_rows(tmp_path / "first") == (1, 0)


def test_over_the_limit_the_error_says_when_the_next_session_expires(tmp_path: Path, clock: Clock) -> None:
    sessions = sessions_of_a_worker(tmp_path, clock, 2)
    sessions.open("caller")
    clock.now += 30
    sessions.open("caller")
    for seconds_later in (0, 20, 49):
        clock.now = 1_000_030.0 + seconds_later
        with pytest.raises(Overloaded) as excinfo:
            sessions.open("caller")
        assert excinfo.value.retry_after == LIFETIME_S - 30 - seconds_later


@dataclass
class Callers:
    """Callers at several workers, who count the sessions that they may open."""

    workers: list[Sessions]

    def open_all(self, owner: str) -> list[str]:
        """Open sessions, each at the next worker, until one is refused."""
        opened: list[str] = []
        with contextlib.suppress(Overloaded):
            while True:
                opened.append(self.workers[len(opened) % len(self.workers)].open(owner).id)
        return opened


@pytest.fixture
def callers(tmp_path: Path, clock: Clock) -> Callers:
    return Callers([sessions_of_a_worker(tmp_path, clock, 100) for _ in range(3)])


def test_a_caller_alone_can_open_nine_of_ten_sessions(callers: Callers) -> None:
    assert len(callers.open_all("mallory")) == 90
    for number in range(5):
        callers.workers[0].open(f"caller {number}")


def test_a_caller_without_a_session_gets_one_while_one_is_free(callers: Callers) -> None:
    shares = [len(callers.open_all(f"mallory {number}")) for number in range(4)]
    assert shares == [90, 9, 1, 0]


def test_a_caller_over_the_share_learns_when_its_own_next_session_expires(
    callers: Callers, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers.workers[0].open("alice")
    clock.now += 30
    opened = callers.open_all("mallory")
    clock.now += 20
    with pytest.raises(Overloaded) as excinfo:
        callers.workers[0].open("mallory")
    assert excinfo.value.retry_after == LIFETIME_S - 20
    callers.workers[1].close(opened[0])
    assert len(callers.open_all("mallory")) == 1
    clock.now += LIFETIME_S - 20
    # All have expired but the last one.
    assert len(callers.open_all("mallory")) == 89


def test_concurrent_opens_never_exceed_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [closed_later(Sessions((tmp_path / "first",), LIFETIME_S, 30)) for _ in range(4)]

    def try_to_open(number: int) -> bool:
        try:
            workers[number % 4].open(f"caller {number}")
        except Overloaded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(try_to_open, range(80))) == 30
    assert count_rows(tmp_path / "first") == (30, 0)


def test_two_workers_may_sweep_at_once_and_keep_every_open_session(tmp_path: Path, clock: Clock) -> None:
    workers = [sessions_of_a_worker(tmp_path, clock), sessions_of_a_worker(tmp_path, clock)]
    for _ in range(300):
        session = workers[0].open("caller")
        session["key"] = b"value"
    clock.now += LIFETIME_S + SWEEP_INTERVAL_S
    open_session = workers[1].open("caller")
    with ThreadPoolExecutor(2) as pool:
        for sweep in [pool.submit(worker.sweep) for worker in workers]:
            sweep.result()
    assert count_rows(tmp_path / "first") == (1, 0)
    assert workers[0].get(open_session.id).id == open_session.id


def test_expired_sessions_are_removed_without_another_being_opened(tmp_path: Path) -> None:
    sessions = Sessions((tmp_path / "first",), 1.0, MAX_SESSIONS)
    sessions.open("caller")["key"] = b"value"
    sessions.start_sweeping()
    wait_until(lambda: count_rows(tmp_path / "first") == (0, 0), description="an empty store")


@pytest.mark.parametrize(
    "session_id",
    ["", ".", "..", "../first", "/etc", "a/b", "x" * 5000, "NEW_SESSION", "0" * 36, "overflow", "a\0b"],
)
def test_an_invalid_id_is_not_a_session(sessions: Sessions, session_id: str) -> None:
    sessions.open("caller")
    with pytest.raises(BadInput) as excinfo:
        sessions.get(session_id)
    assert len(str(excinfo.value)) < 200


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A folder in /dev/shm, the default place of sessions."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_opening_a_session_beside_10_000_others_takes_milliseconds(memory_folder: Path, clock: Clock) -> None:
    """SQLite takes a few milliseconds for 200,000 steps; it needs 60,000."""
    sessions = sessions_of_a_worker(memory_folder, clock)
    open_sessions = [sessions.open("caller") for _ in range(10_000)]
    open_sessions[5000]["key"] = b"value"
    steps: list[None] = []
    assert sessions._connection is not None
    sessions._connection.set_progress_handler(lambda: steps.append(None), 1000)
    sessions.open("caller")
    sessions._connection.set_progress_handler(None, 0)
    assert len(steps) < 200
    assert sessions.get(open_sessions[5000].id)["key"] == b"value"
    clock.now += LIFETIME_S
    sessions.sweep()
    assert count_rows(memory_folder / "first") == (0, 0)


def test_concurrent_writes_never_leave_a_partial_value(sessions: Sessions) -> None:
    session = sessions.open("caller")
    values = [bytes([number]) * 200_000 for number in range(4)]
    session["key"] = values[0]
    stop = threading.Event()

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
    for _ in range(50):
        session_id = sessions.open("caller").id

        def close(session_id: str = session_id) -> bool:
            try:
                sessions.close(session_id)
            except BadInput:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            succeeded = [future.result() for future in [pool.submit(close), pool.submit(close)]]
        assert succeeded.count(True) == 1


def test_the_second_folder_is_used_if_the_first_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sessions = closed_later(
        Sessions((tmp_path / "file" / "home", tmp_path / "second"), LIFETIME_S, MAX_SESSIONS)
    )
    session = sessions.open("caller")
    session["key"] = b"value"
    assert sessions.get(session.id)["key"] == b"value"
    assert count_rows(tmp_path / "second") == (1, 1)


def test_if_no_folder_can_be_created_opening_fails_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutOfMemory):
        Sessions((tmp_path / "file" / "home",), LIFETIME_S, MAX_SESSIONS).open("caller")


def test_a_store_that_a_stalled_worker_holds_is_a_429_and_not_a_lack_of_room(
    monkeypatch: pytest.MonkeyPatch, sessions: Sessions, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "LOCK_TIMEOUT_S", 0.1)
    session = sessions.open("caller")
    stalled = sqlite3.connect(tmp_path / "first" / module.FILE, isolation_level=None)
    stalled.execute("BEGIN EXCLUSIVE")
    with pytest.raises(Overloaded):
        session["history"] = b"one"
    stalled.close()
    session["history"] = b"one"
    assert dict(session) == {"history": b"one"}


def test_workers_agree_on_the_folder_also_if_the_first_had_no_room_at_first(
    tmp_path: Path, clock: Clock
) -> None:
    (tmp_path / "first").write_text("a file is where the folder should be")
    session = sessions_of_a_worker(tmp_path, clock).open("caller")
    (tmp_path / "first").unlink()
    other = sessions_of_a_worker(tmp_path, clock)
    assert other.get(session.id).id == session.id
    second_session = other.open("caller")
    assert sessions_of_a_worker(tmp_path, clock).get(second_session.id).id == second_session.id


FILL_BOTH_FOLDERS = """
import sys
from pathlib import Path
from sm.errors import OutOfMemory
from sm.client.sessions import Sessions
from tests.integration.sessions.session_rows import count_rows
first, second = Path(sys.argv[1]), Path(sys.argv[2])
session = Sessions((first, second), 100, 10).open("caller")
large = b"x" * 300_000
session["large"] = large
assert session["large"] == large
session["large"] = large[:250_000]
assert Sessions((first, second), 100, 10).get(session.id)["large"] == large[:250_000]
assert count_rows(first) == (1, 0)
session["large"] = b"small"
assert session["large"] == b"small"
assert count_rows(first) == (1, 1)
try:
    session["large"] = b"x" * 3_000_000
except OutOfMemory:
    print("no room")
assert dict(session) == {"large": b"small"}
filler = first / "filler"
try:
    with filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
except OSError:
    assert dict(Sessions((first, second), 100, 10).get(session.id)) == {"large": b"small"}
filler.unlink()
Sessions((first, second), 100, 10).close(session.id)
assert count_rows(first) == (0, 0)
"""


def test_a_value_too_large_for_the_first_folder_is_kept_in_the_second(tmp_path: Path) -> None:
    """On two small real file systems that fill up."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    mount = "mount -t tmpfs -o size={} none {} || exit 77"
    lines = [mount.format("256k", first), mount.format("2m", second), 'exec "$0" -c "$1" "$2" "$3"']
    command = ["unshare", "-rm", "sh", "-c", "\n".join(lines)]
    completed = subprocess.run(
        [*command, sys.executable, FILL_BOTH_FOLDERS, str(first), str(second)],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode == 77 or "unshare failed" in completed.stderr:
        pytest.skip("this machine does not allow mounting a small file system")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == "no room\n"
