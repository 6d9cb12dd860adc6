"""What the operating system lacks is installed, or the one command is named.

``apt-get`` is a stand-in on PATH here: the tests may not change the machine they run on.
"""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest

from sm.errors import StartError
from sm.tools.build import system_packages
from sm.tools.progress import Progress


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without nginx, whose apt-get writes down what it is asked for."""
    apt = tmp_path / "apt-get"
    apt.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\ncat {tmp_path}/policy >>{tmp_path}/asked\n')
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(system_packages, "has_nginx", lambda: False)
    monkeypatch.setattr(system_packages, "has_libpython", lambda: True)
    monkeypatch.setattr(system_packages, "POLICY", tmp_path / "policy")
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return tmp_path


def said_by() -> str:
    stream = io.StringIO()
    system_packages.provide(Progress(stream))
    return stream.getvalue()


def test_an_ordinary_user_is_told_the_one_command(lacking: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "Run: sudo apt-get install nginx-light" in said_by()
    assert not (lacking / "asked").exists()


def test_root_gets_it_installed_and_no_service_started(
    lacking: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "installing nginx-light" in said_by()
    asked = (lacking / "asked").read_text()
    assert "install -y -qq nginx-light" in asked
    assert "exit 101" in asked
    assert not (lacking / "policy").exists()


def test_a_policy_that_is_there_is_left_alone(lacking: Path) -> None:
    (lacking / "policy").write_text("mine\n")
    system_packages.install(["nginx-light"])
    assert (lacking / "policy").read_text() == "mine\n"


def test_an_apt_get_that_fails_is_tried_again_and_quoted(lacking: Path) -> None:
    (lacking / "apt-get").write_text(
        f"#!/bin/sh\necho x >>{lacking}/asked\necho E: no network >&2\nexit 100\n"
    )
    with pytest.raises(StartError, match="E: no network"):
        system_packages.install(["nginx-light"])
    assert (lacking / "asked").read_text().count("x") == 2 * system_packages.MAX_ATTEMPTS


def test_a_failed_installation_does_not_end_the_set_up(
    lacking: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (lacking / "apt-get").write_text("#!/bin/sh\nexit 1\n")
    assert "Run: apt-get install nginx-light" in said_by()


def test_a_machine_that_lacks_nothing_is_left_alone(lacking: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_packages, "has_nginx", lambda: True)
    assert said_by() == ""
