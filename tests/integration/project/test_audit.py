"""``make audit`` says which of the image's Debian packages have holes, or what it could not check and why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm.settings import HERE

HOLE = "CVE-2026-0001 openssl 3.0.1 (fixed)"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder for played programs: no engine has every kind of image, and Debian's tracker is another machine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def play(programs: Path, name: str, script: str) -> None:
    (programs / name).write_text(f"#!/bin/sh\n{script}\n")
    (programs / name).chmod(0o755)


def audit(programs: Path, engine: str = "engine") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(HERE / "tools" / "audit_image.py"), engine, "trireme:cpu"],
        env={"PATH": f"{programs}:/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def play_image(programs: Path, distribution: str) -> None:
    play(
        programs,
        "engine",
        f'case "$*" in *os-release*) echo {distribution};; *) echo Package: openssl;; esac',
    )


def test_a_hole_that_a_newer_package_closes_is_listed_and_fails(programs: Path) -> None:
    play_image(programs, "debian bookworm")
    play(programs, "debsecan", f'grep -q "^Package: openssl" "$4" && test "$2" = bookworm && echo "{HOLE}"')
    completed = audit(programs)
    assert (completed.returncode, completed.stdout.strip()) == (1, HOLE)


def test_without_a_hole_it_says_so(programs: Path) -> None:
    play_image(programs, "debian bookworm")
    play(programs, "debsecan", "true")
    completed = audit(programs)
    assert (completed.returncode, HOLE in completed.stdout) == (0, False)
    assert not completed.stdout.startswith("NOT CHECKED")


@pytest.mark.parametrize(
    ("distribution", "tracker", "reason"),
    [
        ("", "true", "trireme:cpu"),
        ("ubuntu noble", "true", "ubuntu"),
        ("debian bookworm", "echo 'error: while downloading' >&2; exit 1", "error: while downloading"),
    ],
)
def test_what_cannot_be_checked_is_said(programs: Path, distribution: str, tracker: str, reason: str) -> None:
    play(programs, "engine", f"test -n '{distribution}' && echo {distribution}")
    play(programs, "debsecan", tracker)
    completed = audit(programs)
    assert completed.returncode == 0
    assert completed.stdout.startswith("NOT CHECKED")
    assert reason in completed.stdout
