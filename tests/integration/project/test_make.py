"""``make`` on a machine that lacks a program names the next step before it builds anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sm.settings import HERE

INSTALLER = HERE / "tools" / "trireme_tools" / "prepare" / "install_packages.py"


@pytest.fixture
def tools_folder(tmp_path: Path) -> Path:
    """A folder with the few programs that make needs, used as the whole PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("make", "sh", "bash", "test", "env"):
        path = shutil.which(name)
        assert path, name
        (folder / name).symlink_to(path)
    return folder


def add_program(tools_folder: Path, name: str, status: int) -> None:
    """Add a program that only exits with a status, as a Docker client does without its service."""
    (tools_folder / name).write_text(f"#!/bin/sh\nexit {status}\n")
    (tools_folder / name).chmod(0o755)


def run_make(tools_folder: Path, *arguments: str) -> str:
    completed = subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=HERE,
        env={"PATH": str(tools_folder), "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return completed.stdout + completed.stderr


@pytest.mark.exhaustive
def test_an_image_is_built_with_podman_where_dockers_service_does_not_answer(tools_folder: Path) -> None:
    add_program(tools_folder, "docker", 1)
    add_program(tools_folder, "podman", 0)
    output = run_make(tools_folder, "--dry-run", "image")
    assert f"{tools_folder}/podman build " in output


@pytest.mark.exhaustive
def test_without_a_container_service_the_next_step_is_named(tools_folder: Path) -> None:
    assert "apt-get install podman" in run_make(tools_folder, "image")
    add_program(tools_folder, "docker", 1)
    assert "docker is here" in run_make(tools_folder, "image")


def run_installer(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(INSTALLER), "--retries", "1", "--target", "/nonexistent", *arguments],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PIP_CONFIG_FILE": "/dev/null", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}, "index"),
        ({"PIP_INDEX_URL": "https://no-such-host.invalid/simple"}, "name server"),
        (
            {"PIP_INDEX_URL": "https://index.invalid/simple", "PIP_PROXY": "http://127.0.0.1:9"},
            "proxy",
        ),
        ({"PIP_NO_INDEX": "1"}, "no-such-package"),
    ],
)
def test_packages_that_cannot_be_installed_are_reported_in_one_sentence(
    variables: dict[str, str], named: str
) -> None:
    completed = run_installer("no-such-package", **variables)
    assert completed.returncode == 1
    (line,) = completed.stderr.splitlines()
    assert named in line


@pytest.mark.exhaustive
def test_a_package_other_than_the_one_in_the_lock_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "parcel-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("parcel-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: parcel\nVersion: 1\n")
        archive.writestr("parcel-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr("parcel-1.dist-info/RECORD", "")
    lock = tmp_path / "requirements.lock"
    lock.write_text(f"parcel==1 --hash=sha256:{'0' * 64}\n")
    completed = run_installer(
        "--no-deps", "--requirement", str(lock), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path)
    )
    assert completed.returncode == 1
    assert "parcel==1" in completed.stderr
