"""Reading a log file, also while it is written, and filtering its lines."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest

from trireme_tools import logs


@pytest.mark.parametrize(
    ("read", "texts"),
    [(logs.status_prefix, ["4x", "600", "ok", "44", ""]), (logs.time_or_age, ["2w", "soon", "-1h", ""])],
)
def test_an_invalid_status_or_time_is_refused(read: Callable[[str], object], texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError):
            read(text)


def test_a_time_may_be_an_age_a_word_or_a_date() -> None:
    before, read, after = datetime.now(timezone.utc), logs.time_or_age("2h"), datetime.now(timezone.utc)
    assert before <= read + timedelta(hours=2) <= after
    assert logs.time_or_age("2026-11-21T10:00:00Z") == datetime(2026, 11, 21, 10, tzinfo=timezone.utc)
    assert logs.time_or_age("yesterday").hour == 0
