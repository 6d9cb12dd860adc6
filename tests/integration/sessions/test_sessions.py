"""A session lives in files: seen by every worker, whole or not at all, until it is closed or has ended."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from sm.client.sessions import SWEEP_INTERVAL_S, Sessions
from sm.errors import BadInput, OutOfMemory, Overloaded
from sm.settings import HERE
from tests.support.boxes import wait_until

SECONDS, LIMIT = 100.0, 20_000


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
    return worker(tmp_path, clock)


def worker(tmp_path: Path, clock: Clock, limit: int = LIMIT) -> Sessions:
    return Sessions((tmp_path / "first", tmp_path / "second"), SECONDS, limit, clock)


def test_what_one_worker_keeps_another_has(sessions: Sessions, tmp_path: Path, clock: Clock) -> None:
    opened = sessions.open()
    opened["history"] = b"one"
    seen = worker(tmp_path, clock).get(opened.id)
    assert dict(seen) == {"history": b"one"}
    seen["history"] = b"two"
    assert opened["history"] == b"two"


def test_a_session_is_a_mapping(sessions: Sessions) -> None:
    session = sessions.open()
    keys = ["", ".", "..", "a/b", "../up", "\n", "ключ", "a b"]
    session.update({key: key.encode() for key in keys})
    assert sorted(session) == sorted(keys)
    assert all(session[key] == key.encode() for key in keys)
    del session["a/b"]
    assert "a/b" not in session
    assert len(session) == len(keys) - 1
    with pytest.raises(KeyError):
        del session["a/b"]


def test_a_session_ends_when_its_time_is_over_however_often_it_is_used(
    sessions: Sessions, clock: Clock, tmp_path: Path
) -> None:
    session = sessions.open()
    assert session.expires == clock.now + SECONDS
    clock.now += SECONDS - 1
    sessions.get(session.id)["key"] = b"value"
    assert sessions.get(session.id).expires == session.expires
    clock.now += 1
    with pytest.raises(BadInput, match="has expired"):
        sessions.get(session.id)
    assert list((tmp_path / "first").iterdir()) == []


def test_a_closed_session_is_no_more_and_leaves_nothing(sessions: Sessions, tmp_path: Path) -> None:
    session = sessions.open()
    session["key"] = b"value"
    sessions.close(session.id)
    assert list((tmp_path / "first").iterdir()) == []
    for use in (sessions.get, sessions.close):
        with pytest.raises(BadInput, match="there is no session"):
            use(session.id)
    with pytest.raises(BadInput, match="has been closed"):
        session["key"] = b"late"
    assert dict(session) == {}


@pytest.mark.parametrize("key", ["k" * 255, "/" * 85, "ü" * 43, "k" * 5000])
def test_a_key_that_can_name_no_file_is_a_400_and_is_not_there(sessions: Sessions, key: str) -> None:
    session = sessions.open()
    with pytest.raises(BadInput, match="254 bytes"):
        session[key] = b"value"
    assert key not in session
    assert session.get(key) is None
    with pytest.raises(KeyError):
        del session[key]
    session["k" * 254] = b"longest"
    assert dict(session) == {"k" * 254: b"longest"}


def test_over_the_limit_no_session_is_opened_until_one_is_closed_or_expires(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sm.client.sessions.RECOUNT_INTERVAL_S", 0.0)
    sessions, other = worker(tmp_path, clock, 5), worker(tmp_path, clock, 5)
    (tmp_path / "first" / "not-a-session").mkdir(parents=True)
    opened = [each.open() for each in (sessions, other, sessions, other, sessions)]
    for each in (sessions, other):
        with pytest.raises(Overloaded, match="5 sessions are open, as many as TRIREME_MAX_SESSIONS allows"):
            each.open()
    other.close(opened[0].id)
    sessions.open()
    with pytest.raises(Overloaded):
        other.open()
    clock.now += SECONDS
    other.open()
    assert len(list((tmp_path / "first").iterdir())) == 2


def test_of_many_that_are_opened_at_once_no_more_than_the_limit_are(tmp_path: Path) -> None:
    workers = [Sessions((tmp_path / "first",), SECONDS, 30) for _ in range(4)]

    def attempt(number: int) -> bool:
        try:
            workers[number % 4].open()
        except Overloaded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(80))) == 30
    assert len(list((tmp_path / "first").iterdir())) == 30


def test_an_overloaded_box_does_not_count_its_sessions_for_each_caller(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = worker(tmp_path, clock, 3)
    for _ in range(3):
        sessions.open()
    sweeps: list[None] = []
    monkeypatch.setattr(sessions, "sweep", lambda: sweeps.append(None))
    for _ in range(50):
        with pytest.raises(Overloaded):
            sessions.open()
    assert len(sweeps) <= 2


def test_two_workers_sweep_at_once_and_leave_nothing_but_what_is_open(tmp_path: Path, clock: Clock) -> None:
    workers = [worker(tmp_path, clock), worker(tmp_path, clock)]
    for _ in range(300):
        session = workers[0].open()
        session["key"] = b"value"
        (tmp_path / "second" / "overflow" / session.id).mkdir(parents=True)
    clock.now += SECONDS + SWEEP_INTERVAL_S
    lasting = workers[1].open()
    with ThreadPoolExecutor(2) as pool:
        for swept in [pool.submit(each.sweep) for each in workers]:
            swept.result()
    assert [path.name for path in (tmp_path / "first").iterdir()] == [lasting.id]
    assert list((tmp_path / "second" / "overflow").iterdir()) == []
    assert workers[0].get(lasting.id).id == lasting.id


def test_ended_sessions_are_removed_though_nobody_opens_another(tmp_path: Path) -> None:
    sessions = Sessions((tmp_path / "first",), 1.0, LIMIT)
    sessions.open()["key"] = b"value"
    sessions.start_sweeping()
    wait_until(lambda: not list((tmp_path / "first").iterdir()), description="an empty folder")


@pytest.mark.parametrize(
    "identity",
    ["", ".", "..", "../first", "/etc", "a/b", "x" * 5000, "NEW_SESSION", "0" * 36, "overflow", "a\0b"],
)
def test_what_is_no_id_of_ours_is_no_session(sessions: Sessions, identity: str) -> None:
    sessions.open()
    with pytest.raises(BadInput, match="there is no session") as excinfo:
        sessions.get(identity)
    assert len(str(excinfo.value)) < 200


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder where sessions are kept unless told otherwise."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_ten_thousand_are_open_and_another_lists_none_of_them(
    memory: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = worker(memory, clock)
    opened = [kept.open() for _ in range(10_000)]
    opened[5000]["key"] = b"value"
    clock.now += SWEEP_INTERVAL_S
    listed: list[Path] = []

    def list_nothing(home: Path) -> list[object]:
        listed.append(home)
        return []

    monkeypatch.setattr("sm.client.sessions._entries", list_nothing)
    for _ in range(100):
        kept.open()
    assert kept.get(opened[5000].id)["key"] == b"value"
    assert listed == []
    monkeypatch.undo()
    clock.now += SECONDS
    kept.sweep()
    assert list((memory / "first").iterdir()) == []


def test_a_sweep_leaves_alone_what_is_not_a_session(sessions: Sessions, clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "first" / "mine").mkdir(parents=True)
    (tmp_path / "first" / "notes.txt").write_text("mine")
    open_still = sessions.open()
    sessions.sweep()
    names = {path.name for path in (tmp_path / "first").iterdir()}
    assert names == {"mine", "notes.txt", open_still.id}


def test_what_a_dying_worker_left_half_made_or_half_removed_is_swept(
    sessions: Sessions, clock: Clock, tmp_path: Path
) -> None:
    session = sessions.open()
    folder = tmp_path / "first" / session.id
    folder.rename(folder.with_name(f".closed-{session.id}"))
    (tmp_path / "second" / "overflow" / session.id).mkdir(parents=True)
    clock.now += SECONDS + SWEEP_INTERVAL_S
    sessions.sweep()
    assert list((tmp_path / "first").iterdir()) == []
    assert list((tmp_path / "second" / "overflow").iterdir()) == []


def test_of_two_who_write_at_once_one_wins_and_nobody_reads_half(sessions: Sessions) -> None:
    session = sessions.open()
    values = [bytes([number]) * 200_000 for number in range(4)]
    session["key"] = values[0]
    over = threading.Event()

    def write(value: bytes) -> None:
        while not over.is_set():
            session["key"] = value

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, value) for value in values]
        try:
            assert all(session["key"] in values for _ in range(500))
        finally:
            over.set()
        for writer in writers:
            writer.result()


def test_of_two_who_close_at_once_one_is_told_that_there_is_no_session(sessions: Sessions) -> None:
    for _ in range(50):
        identity = sessions.open().id

        def close(identity: str = identity) -> bool:
            try:
                sessions.close(identity)
            except BadInput:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            closed = [future.result() for future in [pool.submit(close), pool.submit(close)]]
        assert closed.count(True) == 1


def test_where_the_first_home_cannot_be_the_second_is_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    sessions = Sessions((tmp_path / "file" / "home", tmp_path / "second"), SECONDS, LIMIT)
    session = sessions.open()
    session["key"] = b"value"
    assert sessions.get(session.id)["key"] == b"value"
    assert (tmp_path / "second" / session.id).is_dir()


def test_where_no_home_can_be_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutOfMemory, match="no room for another session"):
        Sessions((tmp_path / "file" / "home",), SECONDS, LIMIT).open()


FULL = """
import sys
from pathlib import Path
from sm.errors import OutOfMemory
from sm.client.sessions import Sessions
first, second = Path(sys.argv[1]), Path(sys.argv[2])
session = Sessions((first, second), 100, 10).open()
large = b"x" * 100_000
session["large"] = large
assert session["large"] == large
session["large"] = large[:50_000]
assert Sessions((first, second), 100, 10).get(session.id)["large"] == large[:50_000]
assert len(list((second / "overflow" / session.id).iterdir())) == 1, "what was replaced is gone"
session["large"] = b"small"
assert session["large"] == b"small"
assert list((second / "overflow" / session.id).iterdir()) == []
try:
    session["huge"] = b"x" * 1_000_000
except OutOfMemory as error:
    print(error)
assert dict(session) == {"large": b"small"}
Sessions((first, second), 100, 10).close(session.id)
assert list((second / "overflow").iterdir()) == [], "overflow goes with its session"
"""


def test_a_value_that_finds_no_room_lies_in_the_second_home(tmp_path: Path) -> None:
    """On two real file systems that are full."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    mount = "mount -t tmpfs -o size={} none {} || exit 77"
    lines = [mount.format("32k", first), mount.format("256k", second), 'exec "$0" -c "$1" "$2" "$3"']
    command = ["unshare", "-rm", "sh", "-c", "\n".join(lines)]
    completed = subprocess.run(
        [*command, sys.executable, FULL, str(first), str(second)],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode == 77 or "unshare failed" in completed.stderr:
        pytest.skip("this machine lets nobody mount a small file system")
    assert completed.returncode == 0, completed.stderr
    assert "no room for a value of a session (No space left on device)" in completed.stdout
