"""The python backend's shared memory fits into /dev/shm, and the start says so if it is less than was asked for."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from sm.triton.server import _pool

MB = 2**20


@pytest.fixture
def docker_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """A /dev/shm as Docker gives it: 64 MB."""
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=64 * MB // 4096, f_frsize=4096))


@pytest.mark.usefixtures("docker_default")
def test_a_pool_that_is_cut_is_logged_with_both_numbers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert _pool(16 * MB, 3, Path("/dev/shm")) == 10 * MB
    (line,) = caplog.messages
    assert "10485760 instead of 16777216" in line
    assert "3 instances" in line


@pytest.mark.usefixtures("docker_default")
def test_a_pool_that_fits_is_as_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert _pool(16 * MB, 2, Path("/dev/shm")) == 16 * MB
    assert caplog.messages == []
