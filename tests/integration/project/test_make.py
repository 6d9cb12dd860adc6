"""``make`` on a machine that lacks something: a sentence with the next step, before anything is built."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sm.settings import HERE

INSTALLER = HERE / "sm" / "tools" / "build" / "install_packages.py"


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with the few programs that make needs: what is not in it is not on this machine."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("make", "sh", "bash", "test", "env"):
        found = shutil.which(name)
        assert found, name
        (folder / name).symlink_to(found)
    return folder


def add(tools: Path, name: str, status: int) -> None:
    """A program that does nothing but end with a status, as a Docker client does without its service."""
    (tools / name).write_text(f"#!/bin/sh\nexit {status}\n")
    (tools / name).chmod(0o755)


def make(tools: Path, *words: str) -> str:
    done = subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=HERE,
        env={"PATH": str(tools), "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout + done.stderr


def test_an_image_is_built_with_podman_where_dockers_service_does_not_answer(tools: Path) -> None:
    add(tools, "docker", 1)
    add(tools, "podman", 0)
    said = make(tools, "--dry-run", "image")
    assert f"{tools}/podman build " in said


def test_without_a_service_that_answers_the_next_step_is_named(tools: Path) -> None:
    assert "there is no docker and no podman; on Debian and Ubuntu: apt-get install podman" in make(
        tools, "image"
    )
    add(tools, "docker", 1)
    assert "docker is here, but its service does not answer" in make(tools, "image")


def test_the_benchmark_asks_for_wrk_before_it_installs_anything(tools: Path) -> None:
    said = make(tools, "bench", "PYTHON=/nonexistent")
    assert "there is no wrk, which makes the load; on Debian and Ubuntu: apt-get install wrk" in said
    assert "installing" not in said


def install(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(INSTALLER), "--retries", "1", "--target", "/nonexistent", *words],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PIP_CONFIG_FILE": "/dev/null", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}, "the package index does not answer"),
        ({"PIP_INDEX_URL": "https://no-such-host.invalid/simple"}, "no name server answers"),
        (
            {"PIP_INDEX_URL": "https://index.invalid/simple", "PIP_PROXY": "http://127.0.0.1:9"},
            "the proxy does not answer or refuses",
        ),
        ({"PIP_NO_INDEX": "1"}, "the package index has no no-such-package"),
    ],
)
def test_packages_that_cannot_be_installed_are_one_sentence(variables: dict[str, str], sentence: str) -> None:
    done = install("no-such-package", **variables)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"the packages were not installed: {sentence}")
    assert line.endswith("What is here stays: run it again then.")


@pytest.mark.exhaustive
def test_an_environment_whose_making_was_interrupted_gets_its_pip_back(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    done = subprocess.run(
        [python, INSTALLER, "--help"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert (
        subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    )
