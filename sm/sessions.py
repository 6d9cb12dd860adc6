"""Stateful sessions: what a client keeps between two requests of one caller, in files that every worker sees.

A session is a folder whose modification time is when it ends; its values are files in a folder within. It is
made aside and renamed, and renamed again to be closed: it is there whole, or not at all.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from sm.errors import BadInput, OutOfMemory

#: Ids are made here, so nothing else can be one: no path, no name of a file.
IDENTITY = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Folders that are being made or removed.
ASIDE = re.compile(rf"\.(new|closed)-{IDENTITY.pattern}")
VALUES = "values"
#: Before a value's name, so that no key is ``.`` or a hidden file.
MARK = "="
#: Seconds between two looks for sessions that have ended, and that a folder may be aside.
SWEEP_EVERY = 60.0


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
        while True:
            target = _target(path)
            try:
                return path.read_bytes()
            except FileNotFoundError:
                # Between the link and what it leads to, another request may have set the key.
                if _target(path) == target:
                    raise KeyError(key) from None

    def __setitem__(self, key: str, value: bytes) -> None:
        """:class:`OutOfMemory` if there is room nowhere, :class:`BadInput` if the session was closed."""
        path, staged = self._path(key), self._values / f".{uuid.uuid4().hex}"
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
                yield unquote(path.name.removeprefix(MARK))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _path(self, key: str) -> Path:
        return self._values / f"{MARK}{quote(key, safe='')}"

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
            except OSError:
                _unlink(target)
                raise
            # A link takes no room of its own.
            staged.symlink_to(target)


class Sessions:
    """All sessions of a box, in the first of ``homes`` that has room; one lasts so many ``seconds``."""

    def __init__(self, homes: Sequence[Path], seconds: float, clock: Callable[[], float] = time.time) -> None:
        self._homes, self._seconds, self._clock = homes, seconds, clock
        self._next_sweep = 0.0

    def open(self) -> Session:
        """A new one; :class:`OutOfMemory` if it can be made nowhere."""
        now = self._clock()
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_EVERY
            # Aside: thousands may have ended at once.
            threading.Thread(target=self.sweep, name="sweep", daemon=True).start()
        identity = str(uuid.uuid4())
        for home in self._homes:
            try:
                return self._made(home, identity, int(now + self._seconds))
            except OSError as error:
                reason = error.strerror
        raise OutOfMemory(f"there is no room for another session ({reason})")

    def get(self, identity: str) -> Session:
        """:class:`BadInput` for one that is not open: never was, was closed, or has ended."""
        home, expires = self._found(identity)
        if expires <= self._clock():
            self._remove(home, identity)
            raise BadInput(f"the session {identity} has expired")
        return self._session(home, identity, expires)

    def close(self, identity: str) -> None:
        """End it; of two who do, one is told that there is no such session."""
        self.get(identity)
        home, _ = self._found(identity)
        if not self._remove(home, identity):
            raise _unknown(identity)

    def sweep(self) -> None:
        """Remove the sessions that have ended. Whatever else lies there is somebody else's."""
        for home in self._homes:
            with contextlib.suppress(OSError), os.scandir(home) as entries:
                for entry in entries:
                    aside = ASIDE.fullmatch(entry.name)
                    if (aside or IDENTITY.fullmatch(entry.name)) and self._over(entry, bool(aside)):
                        self._remove(home, entry.name)

    def _over(self, entry: os.DirEntry[str], aside: bool) -> bool:
        try:
            return entry.stat().st_mtime + SWEEP_EVERY * aside <= self._clock()
        except FileNotFoundError:
            return False

    def _made(self, home: Path, identity: str, expires: int) -> Session:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        staged = home / f".new-{identity}"
        (staged / VALUES).mkdir(parents=True)
        os.utime(staged, (expires, expires))
        staged.rename(home / identity)
        return self._session(home, identity, expires)

    def _session(self, home: Path, identity: str, expires: int) -> Session:
        return Session(identity, expires, home / identity, self._overflow(identity))

    def _overflow(self, identity: str) -> Path:
        return self._homes[-1] / "overflow" / identity

    def _found(self, identity: str) -> tuple[Path, int]:
        if not IDENTITY.fullmatch(identity):
            raise _unknown(identity)
        for home in self._homes:
            with contextlib.suppress(OSError):
                return home, int((home / identity).stat().st_mtime)
        raise _unknown(identity)

    def _remove(self, home: Path, name: str) -> bool:
        """Whether it was there to be removed."""
        closed = home / f".closed-{name}" if IDENTITY.fullmatch(name) else home / name
        try:
            (home / name).rename(closed)
        except FileNotFoundError:
            return False
        shutil.rmtree(closed, ignore_errors=True)
        shutil.rmtree(self._overflow(name), ignore_errors=True)
        return True


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
