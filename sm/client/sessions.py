"""Stateful sessions: a key-value store for each, in files that every worker reads.

A session is a folder, and its modification time is the time at which it ends. Its values are files in a
folder within. It is created under a hidden name and then renamed, and renamed again before it is removed,
so no worker sees half of it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import math
import os
import re
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from sm.errors import BadInput, OutOfMemory, Overloaded
from sm.polling import Poll

#: The form of the ids that are created here. An id of another form is never used as a path.
ID_PATTERN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Hidden folders: sessions that are being created or removed.
RESERVED_NAME = re.compile(rf"\.(new|closed)-{ID_PATTERN.pattern}")
ID_LENGTH = 36
#: An id begins with so many digits of a hash of the session's owner: names are enough to count an owner's.
OWNER_DIGITS = 8
#: A caller may hold so many sessions for each one that is free. A caller alone can open nine of ten, and
#: while a session is free, a caller who has none can open it.
MAX_PER_FREE = 9
VALUES, OVERFLOW = "values", "overflow"
#: Bytes of a disk that values leave free, at most a quarter of it: Triton and nginx need room there too.
RESERVED_BYTES = 64 * 2**20
#: Prefix of a value's file name, so that no key becomes ``.`` or a hidden file.
PREFIX = "="
#: Bytes of a percent-encoded key in its file's name. Linux allows 255, and one is the prefix.
MAX_KEY_BYTES = 254
#: Longest interval between two sweeps for expired sessions, and how long a hidden folder may exist.
SWEEP_INTERVAL_S = 60.0
#: At the limit, a worker counts the open sessions one by one at most this often.
RECOUNT_INTERVAL_S = 1.0
#: For the lock under which a session is opened. A worker holds it for about 0.1 ms, or for a second while it
#: sweeps thousands of sessions.
LOCK_TIMEOUT_S, LOCK_POLL_S = 1.0, 0.002


class Session(MutableMapping[str, bytes]):
    """A session's values: a mapping of text keys to bytes, shared by all workers.

    If two requests set a key at once, the later one wins, and no reader sees half a value.

    Example::

        def inference(self, payload: Question) -> str:
            if payload.session is not None:
                history = payload.session.get("history", b"")
                payload.session["history"] = history + payload.text.encode()

    Args:
        identity: The session's id.
        expires: When the session ends, in seconds since 1970.
        folder: Holds the values.
        overflow: Holds values that ``folder`` has no room for; ``folder`` then has links to them.
    """

    def __init__(self, identity: str, expires: int, folder: Path, overflow: Path) -> None:
        #: The session's id.
        self.id = identity
        #: When the session ends, in seconds since 1970.
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
                # Another request may have set the key after the link was read and before its target was.
                if _target(path) == target:
                    raise KeyError(key) from None

    def __setitem__(self, key: str, value: bytes) -> None:
        """Store a value.

        Raises:
            OutOfMemory: No folder has room for it.
            BadInput: The session was closed, or the key is too long.
        """
        path, staged = self._path(key), self._values / f".{uuid.uuid4().hex}"
        if path is None:
            raise BadInput(f"a session's key may have {MAX_KEY_BYTES} bytes, percent-encoded: {key[:64]!r}…")
        old_target = _target(path)
        try:
            self._write(staged, value)
            staged.replace(path)
        except FileNotFoundError:
            raise BadInput(f"the session {self.id} has been closed") from None
        except OSError as error:
            _unlink(staged)
            raise OutOfMemory(f"there is no room for a value of a session ({error.strerror})") from error
        if old_target:
            _unlink(old_target)

    def __delitem__(self, key: str) -> None:
        path = self._path(key)
        if path is None:
            raise KeyError(key)
        old_target = _target(path)
        try:
            path.unlink()
        except FileNotFoundError:
            raise KeyError(key) from None
        if old_target:
            _unlink(old_target)

    def __iter__(self) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError):
            for path in list(self._values.glob(f"{PREFIX}*")):
                yield unquote(path.name.removeprefix(PREFIX), errors="surrogatepass")

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _path(self, key: str) -> Path | None:
        """Return the value's file; None if the key is too long for a file name."""
        name = quote(key, safe="", errors="surrogatepass")
        return self._values / f"{PREFIX}{name}" if len(name) <= MAX_KEY_BYTES else None

    def _write(self, staged: Path, value: bytes) -> None:
        """Write a value to the file ``staged``, or to the overflow folder with a link if there is no room."""
        try:
            _write(staged, value)
        except FileNotFoundError:
            raise
        except OSError:
            _unlink(staged)
            self._overflow.mkdir(mode=0o700, parents=True, exist_ok=True)
            target = self._overflow / uuid.uuid4().hex
            try:
                _write(target, value)
                # A link takes no room of its own.
                staged.symlink_to(target)
            except OSError:
                _unlink(target)
                raise


class Sessions:
    """All sessions of a box.

    Args:
        homes: Folders for sessions; a new one goes to the first that has room.
        seconds: How long a session lasts.
        limit: Sessions that may be open at once, in all workers together.
        clock: Returns seconds since 1970.
    """

    def __init__(
        self, homes: Sequence[Path], seconds: float, limit: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._homes, self._seconds, self._limit, self._clock = homes, seconds, limit, clock
        self._next_recount = 0.0
        #: When the first of an owner's sessions ends, by the last count.
        self._next_ends: dict[str, float] = {}
        #: The folders of each owner, and when the folders had changed at the time of that count.
        self._owned: Counter[str] = Counter()
        self._owned_at: list[int] = []
        #: Folders that the last count found and that are not open sessions.
        self._other_folders = 0

    def open(self, owner: str) -> Session:
        """Open a session.

        Args:
            owner: The name of the caller's API key, or the caller's address.

        Raises:
            Overloaded: As many sessions are open as the limit allows, or as the owner's share of it. It says
                when the next one, or the owner's next one, expires.
            OutOfMemory: No folder has room for one.
        """
        digits = self._owner_digits(owner)
        identity = digits + str(uuid.uuid4())[OWNER_DIGITS:]
        for home in self._homes:
            try:
                home.mkdir(mode=0o700, parents=True, exist_ok=True)
                with _locked(home):
                    self._check_limit(digits)
                    return self._create(home, identity, int(self._clock() + self._seconds))
            except OSError as error:
                reason = error.strerror
        raise OutOfMemory(f"there is no room for another session ({reason})")

    def start_sweeping(self) -> None:
        """Start a thread that removes expired sessions. Several workers may sweep at once."""

        # Sessions that last a second are removed within another second.
        interval_s = min(SWEEP_INTERVAL_S, max(1.0, self._seconds))
        Poll("session-sweep", interval_s, self.sweep).start()

    def get(self, identity: str) -> Session:
        """Return an open session.

        Raises:
            BadInput: The id is unknown, or the session was closed or has expired.
        """
        home, expires = self._find(identity)
        if expires <= self._clock():
            self._remove(home, identity)
            raise BadInput(f"the session {identity} has expired")
        return self._session(home, identity, expires)

    def close(self, identity: str) -> None:
        """Close a session. If two requests close it at once, one of them gets :class:`BadInput`."""
        self.get(identity)
        home, _ = self._find(identity)
        if not self._remove(home, identity):
            raise _unknown(identity)

    def sweep(self) -> None:
        """Remove expired sessions. Other files in the folders are left alone."""
        for home in self._homes:
            for entry in _entries(home):
                hidden = RESERVED_NAME.fullmatch(entry.name)
                if (hidden or ID_PATTERN.fullmatch(entry.name)) and self._is_expired(entry, bool(hidden)):
                    with contextlib.suppress(OSError):
                        self._remove(home, entry.name)
        for entry in _entries(self._homes[-1] / OVERFLOW):
            # A value was written while its session was being closed.
            if ID_PATTERN.fullmatch(entry.name) and not any(
                (home / entry.name).exists() for home in self._homes
            ):
                shutil.rmtree(entry.path, ignore_errors=True)

    def _check_limit(self, owner: str) -> None:
        """Raise :class:`Overloaded` if the limit is reached, or the owner's share of it."""
        if self._has_room(owner):
            return
        # Some folders may belong to expired sessions, or not be sessions. Counting the open ones takes time,
        # and any caller can cause it, so it is done once in RECOUNT_INTERVAL_S.
        now = time.monotonic()
        if now >= self._next_recount:
            self._next_recount = now + RECOUNT_INTERVAL_S
            self._recount()
            if self._has_room(owner):
                return
        if self._free() > 0:
            problem = (
                f"this caller has {self._owned[owner]} sessions of the {self._limit} that "
                "TRIREME_MAX_SESSIONS allows, and the others are for other callers"
            )
            # The owner has opened all of them since the last count, if that knows none.
            end = self._next_ends.get(owner, self._clock() + self._seconds)
        else:
            problem = f"{self._limit} sessions are open, as many as TRIREME_MAX_SESSIONS allows"
            end = min(self._next_ends.values(), default=0.0)
        error = Overloaded(f"{problem}: close some, or wait until they expire")
        error.retry_after = max(1, math.ceil(end - self._clock()))
        raise error

    def _has_room(self, owner: str) -> bool:
        free = self._free()
        # In an emptier store, no owner can have more than its share.
        return free * MAX_PER_FREE > self._limit - free or (
            free > 0 and self._count_owned(owner) < free * MAX_PER_FREE
        )

    def _free(self) -> int:
        return self._limit - sum(map(_count_folders, self._homes)) + self._other_folders

    def _count_owned(self, owner: str) -> int:
        """Return how many sessions an owner has, counted again only if a folder has changed."""
        changed_at = [home.stat().st_mtime_ns for home in self._homes if home.exists()]
        if changed_at != self._owned_at:
            self._owned_at = changed_at
            self._owned = Counter(
                entry.name[:OWNER_DIGITS] for home in self._homes for entry in _entries(home)
            )
        return self._owned[owner]

    def _recount(self) -> None:
        """Remove expired sessions, and count the open ones."""
        self.sweep()
        ends = [
            (end, entry.name[:OWNER_DIGITS])
            for home in self._homes
            for entry in _entries(home)
            if (end := self._open_until(entry))
        ]
        self._other_folders = max(0, sum(map(_count_folders, self._homes)) - len(ends))
        self._next_ends = {owner: end for end, owner in sorted(ends, reverse=True)}
        self._owned_at = []

    def _owner_digits(self, owner: str) -> str:
        # The folder, which differs from box to box, keeps others from reading an address out of an id.
        digest = hashlib.blake2b(f"{self._homes[-1]} {owner}".encode(), digest_size=OWNER_DIGITS // 2)
        return digest.hexdigest()

    def _open_until(self, entry: os.DirEntry[str]) -> float:
        """Return when a session ends; 0 if it has ended, or if the folder is not a session."""
        if not ID_PATTERN.fullmatch(entry.name):
            return 0.0
        end = _end_of(entry)
        return end if self._clock() < end < math.inf else 0.0

    def _is_expired(self, entry: os.DirEntry[str], hidden: bool) -> bool:
        return _end_of(entry) + SWEEP_INTERVAL_S * hidden <= self._clock()

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
        """Remove a session's folders; False if another request was faster."""
        closed = home / f".closed-{name}" if ID_PATTERN.fullmatch(name) else home / name
        try:
            (home / name).rename(closed)
        except FileNotFoundError:
            return False
        shutil.rmtree(closed, ignore_errors=True)
        # The name of a hidden folder ends with the id.
        shutil.rmtree(self._overflow(name[-ID_LENGTH:]), ignore_errors=True)
        return True


@contextlib.contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Hold the lock under which sessions are counted and opened, so that the limit holds for all workers.

    After LOCK_TIMEOUT_S it continues without the lock: a worker may have been stopped while it held it.
    """
    folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    give_up_at = time.monotonic() + LOCK_TIMEOUT_S
    try:
        while not _try_lock(folder) and time.monotonic() < give_up_at:
            time.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(folder)


def _try_lock(folder: int) -> bool:
    """Return False if another thread has the lock. On a file system without locks, return True."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _count_folders(home: Path) -> int:
    """Count the folders in a folder, at least as many as there are sessions."""
    try:
        # On most file systems each subfolder adds a link to its parent, so thousands need not be listed.
        links = home.stat().st_nlink
        return links - 2 if links > 2 else sum(1 for _ in home.iterdir())
    except OSError:
        return 0


def _entries(home: Path) -> list[os.DirEntry[str]]:
    """List a folder; empty if it does not exist."""
    try:
        with os.scandir(home) as entries:
            return list(entries)
    except OSError:
        return []


def _end_of(entry: os.DirEntry[str]) -> float:
    """Return when a session's folder says that it ends; infinity if the folder is gone."""
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except OSError:
        return math.inf


def _unknown(identity: str) -> BadInput:
    return BadInput(
        f"there is no session {identity[:64]!r} in this box: it may have ended with its box, or another box "
        "has it"
    )


def _write(file: Path, value: bytes) -> None:
    """Write a file if that leaves the disk's reserve free."""
    disk = os.statvfs(file.parent)
    reserve = min(disk.f_blocks * disk.f_frsize // 4, RESERVED_BYTES)
    if disk.f_bavail * disk.f_frsize - len(value) < reserve and disk.f_blocks:  # 0: a tmpfs without a limit
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    file.write_bytes(value)


def _target(path: Path) -> Path | None:
    """Return the target of a link; None if the path is a file or does not exist."""
    try:
        return path.readlink()
    except OSError:
        return None


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
