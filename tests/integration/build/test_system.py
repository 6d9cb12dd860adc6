"""Missing system packages are installed, or the error names the command that installs them.

A fake ``apt-get`` on PATH keeps the tests from changing the machine.
"""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest

from sm.commands.progress import Progress
from trireme_tools.prepare import servers


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without nginx, whose fake apt-get records its arguments in the file ``apt-calls``."""
    apt = tmp_path / "apt-get"
    apt.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/apt-calls\ncat {tmp_path}/policy >>{tmp_path}/apt-calls\n'
    )
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(servers, "has_nginx", lambda: False)
    monkeypatch.setattr(servers, "has_libpython", lambda: True)
    monkeypatch.setattr(servers, "POLICY", tmp_path / "policy")
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return tmp_path


def provide_output() -> str:
    """Install what is missing; return what was printed."""
    stream = io.StringIO()
    servers.provide_packages(Progress(stream))
    return stream.getvalue()


def test_what_is_not_installed_does_not_stop_set_up(machine: Path) -> None:
    (machine / "apt-get").write_text("#!/bin/sh\nexit 1\n")
    assert "nginx-light" in provide_output()


def test_root_gets_nginx_installed_without_starting_services(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "nginx-light" in provide_output()
    apt_calls = (machine / "apt-calls").read_text()
    assert "install -y -qq nginx-light" in apt_calls
    assert "exit 101" in apt_calls
    assert not (machine / "policy").exists()
