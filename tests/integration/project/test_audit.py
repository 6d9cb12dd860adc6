"""``make audit`` says which of the image's Debian packages have holes, or what it could not check and why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sm.settings import HERE

HOLE = "CVE-2026-0001 openssl 3.0.1 (fixed)"
FINDS = f'grep -q "^Package: openssl" "$4" && test "$2" = bookworm && echo "{HOLE}"'
NOT_CHECKED = "NOT CHECKED"


@pytest.mark.parametrize(
    ("distribution", "tracker", "status", "begins", "named"),
    [
        ("debian bookworm", FINDS, 1, HOLE, ""),
        ("debian bookworm", "true", 0, "", ""),
        ("", "true", 0, NOT_CHECKED, "trireme:cpu"),
        ("ubuntu noble", "true", 0, NOT_CHECKED, "ubuntu"),
        ("debian bookworm", "echo 'while downloading' >&2; exit 1", 0, NOT_CHECKED, "while downloading"),
    ],
)
def test_a_hole_fails_and_what_cannot_be_checked_is_said(
    tmp_path: Path, distribution: str, tracker: str, status: int, begins: str, named: str
) -> None:
    """With played programs: no engine has every kind of image, and Debian's tracker is another machine."""
    image = f'case "$*" in *os-release*) test -n "{distribution}" && echo {distribution};; *) echo Package: openssl;; esac'
    for name, script in (("engine", image), ("debsecan", tracker)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    completed = subprocess.run(
        [sys.executable, str(HERE / "tools" / "audit_image.py"), "engine", "trireme:cpu"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    printed = completed.stdout
    assert (completed.returncode, named in printed, printed.startswith(begins)) == (status, True, True)
    expected = (begins == HOLE, begins == NOT_CHECKED)
    assert (HOLE in printed, printed.startswith(NOT_CHECKED)) == expected
