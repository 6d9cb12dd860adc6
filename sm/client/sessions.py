"""Stateful sessions: a key-value store for each, kept in files that every worker sees.

A session is a folder whose modification time is when it ends; its values are files in a folder within. It is
made aside and renamed, and renamed again to be closed: it is there whole, or not at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from sm.errors import BadInput, OutOfMemory, Overloaded

log = logging.getLogger(__name__)

#: Ids are made here, so nothing else can be one: no path, no name of a file.
ID_PATTERN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Folders that are being made or removed.
ASIDE = re.compile(rf"\.(new|closed)-{ID_PATTERN.pattern}")
ID_LENGTH = 36
VALUES, OVERFLOW = "values", "overflow"
#: Before a value's name, so that no key is ``.`` or a hidden file.
MARK = "="
#: Bytes of a key as the name of its file: a file's name has 255, one is the mark.
MAX_KEY_BYTES = 254
#: Seconds between two looks for sessions that have ended, at most, and that a folder may be aside.
SWEEP_INTERVAL_S = 60.0
#: Seconds in which a worker counts the sessions one by one once, when there are too many.
RECOUNT_INTERVAL_S = 1.0
#: For the lock under which a session is opened: some 0.1 ms as a rule, a second in a sweep of thousands.
LOCK_TIMEOUT_S, LOCK_POLL_S = 1.0, 0.002


class Session(MutableMapping[str, bytes]):
    """A small store. Of two requests that set a key at once the later wins, and no reader sees half a value.

    A value that ``folder`` has no room for lies in ``overflow``, with a link in its place.
    """

    def __init__(self, identity: str, expires: int, folder: Path, overflow: Path) -> None:
        self.id = identity
        #: Seconds since 1970.
        self.expires = expires
        self._values, self._overflow = folder / VALUES, overflow

    def __getitem__(self, key: str) -> bytes:
        path = self._path(key)
        if path is None:
            raise KeyError(key)
        while True:
            target = _target(path)
            try:
                return path.read_bytes()
            except FileNotFoundError:
                # Between the link and what it leads to, another request may have set the key.
                if _target(path) == target:
                    raise KeyError(key) from None

    def __setitem__(self, key: str, value: bytes) -> None:
        """:class:`OutOfMemory` if there is room nowhere.

        :class:`BadInput` if the session was closed, or the key is too long.
        """
        path, staged = self._path(key), self._values / f".{uuid.uuid4().hex}"
        if path is None:
            raise BadInput(f"a session's key may have {MAX_KEY_BYTES} bytes, percent-encoded: {key[:64]!r}…")
        before = _target(path)
        try:
            self._write(staged, value)
            staged.replace(path)
        except FileNotFoundError:
            raise BadInput(f"the session {self.id} has been closed") from None
        except OSError as error:
            _unlink(staged)
            raise OutOfMemory(f"there is no room for a value of a session ({error.strerror})") from error
        if before:
            _unlink(before)

    def __delitem__(self, key: str) -> None:
        path = self._path(key)
        if path is None:
            raise KeyError(key)
        before = _target(path)
        try:
            path.unlink()
        except FileNotFoundError:
            raise KeyError(key) from None
        if before:
            _unlink(before)

    def __iter__(self) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError):
            for path in list(self._values.glob(f"{MARK}*")):
                yield unquote(path.name.removeprefix(MARK), errors="surrogatepass")

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _path(self, key: str) -> Path | None:
        """The value's file; None for a key that no file can be named by."""
        name = quote(key, safe="", errors="surrogatepass")
        return self._values / f"{MARK}{name}" if len(name) <= MAX_KEY_BYTES else None

    def _write(self, staged: Path, value: bytes) -> None:
        try:
            staged.write_bytes(value)
        except FileNotFoundError:
            raise
        except OSError:
            _unlink(staged)
            self._overflow.mkdir(mode=0o700, parents=True, exist_ok=True)
            target = self._overflow / uuid.uuid4().hex
            try:
                target.write_bytes(value)
                # A link takes no room of its own.
                staged.symlink_to(target)
            except OSError:
                _unlink(target)
                raise


class Sessions:
    """All sessions of a box, in the first of ``homes`` that has room; one lasts so many ``seconds``.

    ``limit``: how many may be open at once. It holds for all workers together, as they count in the files.
    """

    def __init__(
        self, homes: Sequence[Path], seconds: float, limit: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._homes, self._seconds, self._limit, self._clock = homes, seconds, limit, clock
        self._next_recount = 0.0
        #: Folders beside the sessions that were open when they were counted one by one.
        self._other_folders = 0

    def open(self) -> Session:
        """A new one; :class:`Overloaded` over the limit, :class:`OutOfMemory` if it can be made nowhere."""
        identity = str(uuid.uuid4())
        for home in self._homes:
            try:
                home.mkdir(mode=0o700, parents=True, exist_ok=True)
                with _locked(home):
                    self._check_limit()
                    return self._create(home, identity, int(self._clock() + self._seconds))
            except OSError as error:
                reason = error.strerror
        raise OutOfMemory(f"there is no room for another session ({reason})")

    def start_sweeping(self) -> None:
        """Remove ended sessions from now on, in a thread of its own. Several workers may do so at once."""

        def sweep_forever() -> None:
            # A session that lasts a second is gone a second later.
            pause = min(SWEEP_INTERVAL_S, max(1.0, self._seconds))
            while True:
                time.sleep(pause)
                try:
                    self.sweep()
                except Exception:
                    log.exception("ended sessions could not be removed")

        threading.Thread(target=sweep_forever, name="session-sweep", daemon=True).start()

    def get(self, identity: str) -> Session:
        """:class:`BadInput` for one that is not open: never was, was closed, or has ended."""
        home, expires = self._find(identity)
        if expires <= self._clock():
            self._remove(home, identity)
            raise BadInput(f"the session {identity} has expired")
        return self._session(home, identity, expires)

    def close(self, identity: str) -> None:
        """End it; of two who do, one is told that there is no such session."""
        self.get(identity)
        home, _ = self._find(identity)
        if not self._remove(home, identity):
            raise _unknown(identity)

    def sweep(self) -> None:
        """Remove the sessions that have ended. Whatever else lies there is somebody else's."""
        for home in self._homes:
            for entry in _entries(home):
                aside = ASIDE.fullmatch(entry.name)
                if (aside or ID_PATTERN.fullmatch(entry.name)) and self._is_expired(entry, bool(aside)):
                    with contextlib.suppress(OSError):
                        self._remove(home, entry.name)
        for entry in _entries(self._homes[-1] / OVERFLOW):
            # Of a session that was closed while a value was written.
            if ID_PATTERN.fullmatch(entry.name) and not any(
                (home / entry.name).exists() for home in self._homes
            ):
                shutil.rmtree(entry.path, ignore_errors=True)

    def _check_limit(self) -> None:
        if sum(map(_count_folders, self._homes)) - self._other_folders < self._limit:
            return
        # Some have ended, or are no sessions. To find out is work, and whoever asks may ask without end.
        now = time.monotonic()
        if now >= self._next_recount:
            self._next_recount = now + RECOUNT_INTERVAL_S
            self.sweep()
            live = sum(self._is_open(entry) for home in self._homes for entry in _entries(home))
            self._other_folders = max(0, sum(map(_count_folders, self._homes)) - live)
            if live < self._limit:
                return
        raise Overloaded(
            f"{self._limit} sessions are open, as many as TRIREME_MAX_SESSIONS allows: close some, or wait "
            "until they expire"
        )

    def _is_open(self, entry: os.DirEntry[str]) -> bool:
        return bool(ID_PATTERN.fullmatch(entry.name)) and not self._is_expired(entry, aside=False)

    def _is_expired(self, entry: os.DirEntry[str], aside: bool) -> bool:
        try:
            return entry.stat(follow_symlinks=False).st_mtime + SWEEP_INTERVAL_S * aside <= self._clock()
        except OSError:
            return False

    def _create(self, home: Path, identity: str, expires: int) -> Session:
        staged = home / f".new-{identity}"
        (staged / VALUES).mkdir(parents=True)
        os.utime(staged, (expires, expires))
        staged.rename(home / identity)
        return self._session(home, identity, expires)

    def _session(self, home: Path, identity: str, expires: int) -> Session:
        return Session(identity, expires, home / identity, self._overflow(identity))

    def _overflow(self, identity: str) -> Path:
        return self._homes[-1] / OVERFLOW / identity

    def _find(self, identity: str) -> tuple[Path, int]:
        if not ID_PATTERN.fullmatch(identity):
            raise _unknown(identity)
        for home in self._homes:
            with contextlib.suppress(OSError):
                return home, int((home / identity).stat().st_mtime)
        raise _unknown(identity)

    def _remove(self, home: Path, name: str) -> bool:
        """Whether it was there to be removed."""
        closed = home / f".closed-{name}" if ID_PATTERN.fullmatch(name) else home / name
        try:
            (home / name).rename(closed)
        except FileNotFoundError:
            return False
        shutil.rmtree(closed, ignore_errors=True)
        # A folder that was aside already has its mark before the id.
        shutil.rmtree(self._overflow(name[-ID_LENGTH:]), ignore_errors=True)
        return True


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """One thread of one process at a time: what was counted is so until the new session is there.

    Whoever gets no lock goes on without: a worker may have been stopped while it had it.
    """
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    end = time.monotonic() + LOCK_TIMEOUT_S
    try:
        while not _try_lock(folder) and time.monotonic() < end:
            time.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(folder)


def _try_lock(folder: int) -> bool:
    """False if another has the lock. A file system without locks counts as locked."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _count_folders(home: Path) -> int:
    """How many folders are in a folder; more than there are sessions, rather than fewer."""
    try:
        # Each folder within is a link to its parent, on most file systems: no need to list thousands.
        links = home.stat().st_nlink
        return links - 2 if links > 2 else sum(1 for _ in home.iterdir())
    except OSError:
        return 0


def _entries(home: Path) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing if it is not there."""
    try:
        with os.scandir(home) as entries:
            return list(entries)
    except OSError:
        return []


def _unknown(identity: str) -> BadInput:
    return BadInput(f"there is no session {identity[:64]!r}")


def _target(path: Path) -> Path | None:
    """Where a link leads; None for a file, or for nothing."""
    try:
        return path.readlink()
    except OSError:
        return None


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
