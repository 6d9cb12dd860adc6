"""The log of a box in a file is rotated, private, and never stops the box."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sm.settings import Settings
from trireme_tools.log_file import LogFile, open_log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogFile]:
    file = tmp_path / "a" / "log"
    with closing(LogFile(file, lambda count: b"%d lost\n" % count, max_bytes=20)) as log_file:
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


def test_a_full_disk_loses_lines_and_counts(
    log: LogFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda file, data: write(file, data[:3]))
        log.write(b"lost\n")
        log.write(b"too\n")
    log.write(b"here\n")
    assert (tmp_path / "a" / "log").read_bytes() == b"2 lost\nhere\n"


def test_a_box_has_a_file_by_its_port_or_none_where_it_cannot_be_written(tmp_path: Path) -> None:
    sink = open_log(Settings(port=18080, cache=tmp_path))
    assert sink is not None
    sink("data", {"level": "info", "message": "served"})
    assert json.loads((tmp_path / "logs" / "18080.jsonl").read_text())["message"] == "served"
    assert open_log(Settings(cache=tmp_path / "logs" / "18080.jsonl")) is None
