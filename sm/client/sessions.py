"""Stateful sessions: a key-value store for each, in an SQLite database that every worker opens.

Values that the database has no room for go into a second one on another disk.
"""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sm.errors import BadInput, OutOfMemory, Overloaded
from sm.polling import Poll

#: A caller may hold so many sessions for each one that is free. A caller alone can open nine of ten, and
#: while a session is free, a caller who has none can open it.
MAX_PER_FREE = 9
#: Bytes of a disk that values leave free, at most a quarter of it: Triton and nginx need room there too.
RESERVED_BYTES = 64 * 2**20
#: Seconds between two sweeps for expired sessions, at most.
SWEEP_INTERVAL_S = 60.0
#: Seconds to wait for a transaction of another worker, which takes about 0.1 ms.
LOCK_TIMEOUT_S = 5.0
FILE = "sessions.db"
#: The databases: of the sessions, and of values that have no room there.
MAIN, OVERFLOW = "main", "overflow"
SCHEMA = """
CREATE TABLE IF NOT EXISTS main.sessions (id TEXT PRIMARY KEY, owner TEXT, expires INTEGER) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS main.sessions_of_owner ON sessions (owner, expires);
CREATE INDEX IF NOT EXISTS main.ends_of_sessions ON sessions (expires);
"""
#: The last of a database that is made, so that it is complete.
LAST = {MAIN: "ends_of_sessions", OVERFLOW: "items"}
#: The options of each connection. A crash of the machine ends the sessions, so nothing is flushed.
OPTIONS = "PRAGMA {0}.journal_mode = TRUNCATE; PRAGMA {0}.synchronous = OFF;"
#: Space that is freed goes back to the disk.
STORE = """
PRAGMA {0}.auto_vacuum = FULL;
CREATE TABLE IF NOT EXISTS {0}.items (session TEXT, key BLOB, value BLOB, PRIMARY KEY (session, key));
"""


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
        sessions: The store.
    """

    def __init__(self, identity: str, expires: int, sessions: Sessions) -> None:
        #: The session's id.
        self.id = identity
        #: When the session ends, in seconds since 1970.
        self.expires = expires
        self._sessions = sessions

    @property
    def opened(self) -> float:
        """When it began, in seconds since 1970."""
        return self.expires - self._sessions.seconds

    def __getitem__(self, key: str) -> bytes:
        rows = self._select("value", " AND key = ?", _encode(key))
        if not rows:
            raise KeyError(key)
        value: bytes = rows[0]
        return value

    def __setitem__(self, key: str, value: bytes) -> None:
        """Store a value.

        Raises:
            OutOfMemory: No disk has room for it.
            BadInput: The session was closed.
        """
        self._sessions.store(self.id, _encode(key), value)

    def __delitem__(self, key: str) -> None:
        if not self._sessions.delete_value(self.id, _encode(key)):
            raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return (key.decode(errors="surrogatepass") for key in self._select("key"))

    def __len__(self) -> int:
        return len(self._select("key"))

    def _select(self, column: str, condition: str = "", *values: bytes) -> list[Any]:
        stores = self._sessions.stores
        query = " UNION ALL ".join(
            f"SELECT {column} FROM {store}.items WHERE session = ?{condition}"  # noqa: S608 - constants
            for store in stores
        )
        return [row[0] for row in self._sessions.execute(query, *([self.id, *values] * len(stores)))]


class Sessions:
    """All sessions of a box.

    Args:
        homes: Folders for the databases. The first that can be used has the sessions, the last the values
            that the first has no room for.
        seconds: How long a session lasts.
        limit: Sessions that may be open at once, in all workers together.
        clock: Returns seconds since 1970.
    """

    def __init__(
        self, homes: Sequence[Path], seconds: float, limit: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._homes, self.seconds, self._limit, self._clock = homes, seconds, limit, clock
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.RLock()
        #: The databases with values, by name, with their folders.
        self.stores: dict[str, Path] = {}

    def open(self, owner: str) -> Session:
        """Open a session.

        Args:
            owner: The name of the caller's API key, or the caller's address.

        Raises:
            Overloaded: As many sessions are open as the limit allows, or as the owner's share of it. It says
                when the next one, or the owner's next one, expires.
            OutOfMemory: No disk has room for one.
        """
        identity, expires = str(uuid.uuid4()), int(self._clock() + self.seconds)
        with self._transaction():
            self.sweep()
            self._check_limit(owner)
            self.execute("INSERT INTO sessions VALUES (?, ?, ?)", identity, owner, expires)
        return Session(identity, expires, self)

    def start_sweeping(self) -> None:
        """Start a thread that removes expired sessions. Several workers may sweep at once."""
        # Sessions that last a second are removed within another second.
        interval_s = min(SWEEP_INTERVAL_S, max(1.0, self.seconds))
        Poll("session-sweep", interval_s, self.sweep).start()

    def get(self, identity: str) -> Session:
        """Return an open session.

        Raises:
            BadInput: The id is unknown, or the session was closed or has expired.
        """
        found = self.execute("SELECT expires FROM sessions WHERE id = ?", identity)
        if not found:
            raise _unknown(identity)
        ((expires,),) = found
        if expires <= self._clock():
            self._remove("id = ?", identity)
            raise BadInput(f"the session {identity} has expired")
        return Session(identity, expires, self)

    def close(self, identity: str) -> None:
        """Close a session. If two requests close it at once, one of them gets :class:`BadInput`."""
        self.get(identity)
        if not self._remove("id = ?", identity):
            raise _unknown(identity)

    def sweep(self) -> None:
        """Remove expired sessions."""
        if self.execute("SELECT 1 FROM sessions WHERE expires <= ? LIMIT 1", int(self._clock())):
            self._remove("expires <= ?", int(self._clock()))

    def store(self, identity: str, key: bytes, value: bytes) -> None:
        """Store a value of a session in the first database that has room for it."""
        with self._transaction():
            if not self.execute("SELECT 1 FROM sessions WHERE id = ?", identity):
                raise BadInput(f"the session {identity} has been closed")
            self.delete_value(identity, key)
            room = [store for store, home in self.stores.items() if _has_room(home, len(value))]
            if not room:
                raise OutOfMemory("there is no room for a value of a session")
            store = room[0]
            self.execute(f"INSERT INTO {store}.items VALUES (?, ?, ?)", identity, key, value)  # noqa: S608

    def delete_value(self, identity: str, key: bytes) -> bool:
        """Remove a value; False if there is none."""
        deleted = [
            self.execute(
                f"DELETE FROM {store}.items WHERE session = ? AND key = ? RETURNING 1",  # noqa: S608
                identity,
                key,
            )
            for store in self.stores
        ]
        return any(deleted)

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement, in the current transaction if there is one.

        Raises:
            Overloaded: Another worker's transaction takes too long.
            OutOfMemory: There is no room.
        """
        with self._lock:
            try:
                self._connection = self._connection or self._connect()
                return self._connection.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                if "locked" in str(error):
                    raise Overloaded("another worker uses the sessions: try again") from error
                raise OutOfMemory(f"there is no room for sessions and their values ({error})") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run what follows as one step that no other worker sees a part of."""
        with self._lock:
            if self._connection and self._connection.in_transaction:
                yield
                return
            self.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.execute("COMMIT")
            except BaseException:
                if self._connection and self._connection.in_transaction:
                    self.execute("ROLLBACK")
                raise

    def _connect(self) -> sqlite3.Connection:
        """Open the first database that can be opened, and the last as the one for overflow."""
        # All workers use the one that the first of them could make.
        begun = [home for home in self._homes if (home / FILE).exists() and (home / FILE).stat().st_size]
        for home in begun[:1] or self._homes:
            connection = None
            try:
                home.mkdir(mode=0o700, parents=True, exist_ok=True)
                connection = sqlite3.connect(
                    home / FILE, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
                )
                _prepare(connection, MAIN, STORE.format(MAIN) + SCHEMA)
            except (OSError, sqlite3.Error) as error:
                reason = error
                if connection:
                    connection.close()
                continue
            self.stores = {MAIN: home}
            if home != self._homes[-1]:
                self._homes[-1].mkdir(mode=0o700, parents=True, exist_ok=True)
                connection.execute(f"ATTACH ? AS {OVERFLOW}", (str(self._homes[-1] / FILE),))
                _prepare(connection, OVERFLOW, STORE.format(OVERFLOW))
                self.stores[OVERFLOW] = self._homes[-1]
            return connection
        raise sqlite3.OperationalError(str(reason))

    def _check_limit(self, owner: str) -> None:
        """Raise :class:`Overloaded` if the limit is reached, or the owner's share of it."""
        ((count,),) = self.execute("SELECT COUNT(*) FROM sessions")
        ((owned, end),) = self.execute("SELECT COUNT(*), MIN(expires) FROM sessions WHERE owner = ?", owner)
        free = self._limit - count
        if owned < free * MAX_PER_FREE:
            return
        if free > 0:
            problem = (
                f"this caller has {owned} sessions of the {self._limit} that TRIREME_MAX_SESSIONS allows, "
                "and the others are for other callers"
            )
        else:
            problem = f"{self._limit} sessions are open, as many as TRIREME_MAX_SESSIONS allows"
            ((end,),) = self.execute("SELECT MIN(expires) FROM sessions")
        error = Overloaded(f"{problem}: close some, or wait until they expire")
        error.retry_after = max(1, math.ceil(end - self._clock()))
        raise error

    def _remove(self, condition: str, value: object) -> bool:
        """Remove sessions with their values; False if there is none."""
        with self._transaction():
            for store in self.stores:
                self.execute(
                    f"DELETE FROM {store}.items WHERE session IN "  # noqa: S608 - constants
                    f"(SELECT id FROM main.sessions WHERE {condition})",
                    value,
                )
            return bool(self.execute(f"DELETE FROM sessions WHERE {condition} RETURNING 1", value))  # noqa: S608


def _encode(key: str) -> bytes:
    return key.encode(errors="surrogatepass")


def _unknown(identity: str) -> BadInput:
    return BadInput(
        f"there is no session {identity[:64]!r} in this box: it may have ended with its box, or another box "
        "has it"
    )


def _prepare(connection: sqlite3.Connection, store: str, script: str) -> None:
    """Set a database's options and make its tables. One that has them is not written to."""
    connection.executescript(OPTIONS.format(store))
    found = f"SELECT 1 FROM {store}.sqlite_master WHERE name = ?"  # noqa: S608 - a constant
    if not connection.execute(found, (LAST[store],)).fetchone():
        connection.executescript(script)


def _has_room(home: Path, size: int) -> bool:
    """True if a value leaves the disk's reserve free."""
    disk = os.statvfs(home)
    reserve = min(disk.f_blocks * disk.f_frsize // 4, RESERVED_BYTES)
    return disk.f_bavail * disk.f_frsize - size >= reserve or not disk.f_blocks  # 0: a tmpfs without a limit
