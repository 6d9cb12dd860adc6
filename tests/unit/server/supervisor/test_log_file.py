"""The file of the log: bounded, for its user alone, and no reason for the box to stop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sm.server.supervisor.log_file import LogFile


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogFile]:
    with closing(LogFile(tmp_path / "a" / "log", lambda n: b"%d lost\n" % n, max_bytes=20)) as opened:
        yield opened


def test_a_log_goes_on_where_it_ended_and_is_its_users_alone(tmp_path: Path) -> None:
    for line in (b"one\n", b"two\n"):
        with closing(LogFile(tmp_path / "log", lambda _: b"")) as log:
            log.write(line)
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_large_log_is_begun_anew_and_the_one_before_it_is_kept(log: LogFile, tmp_path: Path) -> None:
    for number in range(9):
        log.write(b"line %d\n" % number)
    assert (tmp_path / "a" / "log.1").read_bytes() == b"line 6\nline 7\n"
    assert (tmp_path / "a" / "log").read_bytes() == b"line 8\n"


def test_a_full_disk_loses_lines_and_says_how_many(
    log: LogFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:3]))
    log.write(b"lost\n")
    log.write(b"too\n")
    monkeypatch.setattr(os, "write", write)
    log.write(b"here\n")
    assert (tmp_path / "a" / "log").read_bytes() == b"2 lost\nhere\n"
