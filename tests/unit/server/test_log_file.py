"""The log file is bounded, readable only by its user, and never a reason to stop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sm.server.logs import LogFile


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogFile]:
    with closing(
        LogFile(tmp_path / "a" / "log", lambda count: b"%d lost\n" % count, max_bytes=20)
    ) as log_file:
        yield log_file


def test_a_log_file_is_appended_to_and_readable_only_by_its_user(tmp_path: Path) -> None:
    for line in (b"one\n", b"two\n"):
        with closing(LogFile(tmp_path / "log", lambda _: b"")) as log:
            log.write(line)
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_large_log_file_is_rotated_and_the_previous_one_kept(log: LogFile, tmp_path: Path) -> None:
    for index in range(9):
        log.write(b"line %d\n" % index)
    assert (tmp_path / "a" / "log.1").read_bytes() == b"line 6\nline 7\n"
    assert (tmp_path / "a" / "log").read_bytes() == b"line 8\n"


def test_on_a_full_disk_lines_are_lost_and_their_number_is_logged(
    log: LogFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:3]))
    log.write(b"lost\n")
    log.write(b"too\n")
    monkeypatch.setattr(os, "write", write)
    log.write(b"here\n")
    assert (tmp_path / "a" / "log").read_bytes() == b"2 lost\nhere\n"
