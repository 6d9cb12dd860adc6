"""``make`` on a machine that lacks a program or a package names the next step before it builds anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.support.wheels import write_wheel
from trireme_tools.prepare.install_packages import Installer, InstallError

pytestmark = pytest.mark.exhaustive

INDEX, PROXY = {"PIP_INDEX_URL": "https://index.invalid/simple"}, {"PIP_PROXY": "http://127.0.0.1:9"}


def run(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **more}
    return subprocess.run(
        command, cwd=HERE, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_an_image_is_built_by_the_engine_that_answers_or_the_next_step_is_named(tmp_path: Path) -> None:
    """With a PATH of the few programs that make needs, and engines that only exit with a status."""
    for name in ("make", "sh", "bash", "test", "env"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    make = ("make", "--no-print-directory", "image")
    assert run(*make, PATH=str(tmp_path)).returncode != 0
    for name, status in (("docker", 1), ("podman", 0)):  # a Docker client without its service
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    assert f"{tmp_path}/podman build " in run(*make, PATH=str(tmp_path), DRY_RUN="yes").stdout


def install(*arguments: str, **variables: str) -> str:
    """Try to install into the environment of the tests what cannot be installed; return the sentence."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PIP_CONFIG_FILE": "/dev/null"}
    with pytest.raises(InstallError) as raised:
        Installer(Path(sys.prefix), {**environment, **variables}).install(*arguments)
    (line,) = str(raised.value).splitlines()
    return line


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}, "index"),
        (INDEX, "name server"),
        ({**INDEX, **PROXY}, "proxy"),
        ({"PIP_NO_INDEX": "1"}, "no-such-package"),
    ],
)
def test_packages_that_cannot_be_installed_are_reported_in_one_sentence(
    variables: dict[str, str], named: str
) -> None:
    assert named in install("no-such-package", **variables)


def test_a_package_other_than_the_one_in_the_lock_is_refused(tmp_path: Path) -> None:
    write_wheel(tmp_path, "parcel", "1")
    lock = tmp_path / "requirements.lock"
    lock.write_text(f"parcel==1 --hash=sha256:{'0' * 64}\n")
    options = ("--require-hashes", "--requirement", str(lock))
    assert "parcel==1" in install(*options, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))


def test_a_machine_without_python_learns_the_command(tmp_path: Path) -> None:
    for name in ("make", "sh", "bash", "env", "sed", "grep", "tr"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    made = run("make", "--no-print-directory", "--always-make", ".venv/.serve", PATH=str(tmp_path))
    assert made.returncode != 0
    assert "apt-get install python3-venv" in made.stdout
