"""The rows of a folder of sessions."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path


def count_rows(home: Path) -> tuple[int, int]:
    """Return how many sessions and values a folder's database has."""
    with contextlib.closing(sqlite3.connect(home / "sessions.db")) as database:
        queries = (f"SELECT COUNT(*) FROM {table}" for table in ("sessions", "items"))
        sessions, values = (database.execute(query).fetchone()[0] for query in queries)
    return sessions, values
