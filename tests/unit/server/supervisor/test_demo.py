"""The demo serves what ``sm prepare`` built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sm.server.supervisor import start
from sm.settings import Settings


def test_the_demo_repository_is_the_one_that_sm_prepare_builds(tmp_path: Path) -> None:
    assert start.demo_repository(replace(Settings(), cache=tmp_path)) == tmp_path / "repository" / "cpu"
