"""Missing system packages are installed, or the error names the command that installs them.

A fake ``apt-get`` on PATH keeps the tests from changing the machine.
"""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest

from trireme_tools.prepare import needs, servers
from trireme_tools.progress import Progress


@pytest.mark.parametrize("status", [0, 1])
def test_root_gets_nginx_installed_without_starting_services_or_learns_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int
) -> None:
    """What cannot be installed does not stop the set-up."""
    apt, policy, calls = (tmp_path / name for name in ("apt-get", "policy", "calls"))
    apt.write_text(f'#!/bin/sh\necho "$@" >>{calls}\ncat {policy} >>{calls}\nexit {status}\n')
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(needs, "has_nginx", lambda: False)
    monkeypatch.setattr(servers, "POLICY", policy)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    servers.provide_packages(Progress(printed := io.StringIO()))
    assert {"install -y -qq nginx-light", "exit 101"} <= set(calls.read_text().splitlines())
    assert not policy.exists()
    assert printed.getvalue().rstrip().endswith("apt-get install nginx-light") == bool(status)
