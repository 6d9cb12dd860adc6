"""Run ``sm`` as a user does, or in this process, with AWS credentials that are valid nowhere."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from sm import cli
from sm.settings import HERE
from tests.support.aws import ENVIRONMENT
from tests.support.other_triton import OTHER_TRITON


def run_sm(
    *arguments: object, cwd: Path = HERE, environment: Mapping[str, str] | None = None, prefix: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run ``sm`` in a process of its own, with variables besides this process's, of which it gets no settings.

    ``prefix`` is a command that ends by running it in its place.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("SAGEMAKER", "TRIREME"))
    }
    return subprocess.run(
        [*prefix.split(), sys.executable, "-m", "sm.cli", *map(str, arguments)],
        cwd=cwd,
        env={**inherited, **OTHER_TRITON, "PYTHONPATH": str(HERE), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=560,
    )


def run_sm_here(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run ``sm`` in this process, which saves a second of imports."""
    words, out, err = ["sm", *map(str, arguments)], io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, chdir(cwd), redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", words)
        status = cli.main()
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


@dataclass(frozen=True)
class CommandResult:
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str


RunSm = Callable[..., CommandResult]


@pytest.fixture
def sm(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> RunSm:
    """A function that runs a command in a folder of its own, with credentials that are valid nowhere."""
    monkeypatch.chdir(tmp_path)
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: object) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["sm", *map(str, arguments)])
        status = cli.main()
        sys.stdout.flush()
        return CommandResult(status, *capfd.readouterr())

    return run
