"""The python backend's shared memory fits into /dev/shm, and the start says so if it is less than was asked for."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from sm.triton.server import _pool

MB = 2**20


def test_a_pool_that_is_cut_is_logged_with_both_numbers(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A /dev/shm as Docker gives it: 64 MB.
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=64 * MB // 4096, f_frsize=4096))
    caplog.set_level(logging.INFO)
    assert _pool(16 * MB, 2, Path("/dev/shm")) == 16 * MB
    assert caplog.records == []
    assert _pool(16 * MB, 3, Path("/dev/shm")) == 10 * MB
    (record,) = caplog.records
    assert {3, 10 * MB, 16 * MB} <= set(record.args or ())
