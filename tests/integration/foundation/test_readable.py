"""A repository that this user may not read is refused at start, with the path."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm.readable import unreadable
from sm.settings import HERE
from tests.support.tritons import MODELS

#: Any user but root.
USER = 1000
CODE = """
import os, sys
from pathlib import Path
from sm.readable import check_readable
if os.geteuid() == 0:
    os.setgid({user})
    os.setuid({user})
try:
    check_readable(Path(sys.argv[1]))
except Exception as error:
    print(error)
"""


@pytest.fixture
def repository() -> Iterator[Path]:
    # pytest's own folders are for nobody else.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        MODELS["echo"].write(Path(folder) / "model" / "echo")
        (Path(folder) / "model" / "code").mkdir()
        yield Path(folder) / "model"


def check_as_another_user(repository: Path) -> str:
    """By the check, run as a user who is not root."""
    command = [sys.executable, "-c", CODE.format(user=USER), str(repository)]
    completed = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
    return completed.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files that its own other user may not read")
@pytest.mark.parametrize(
    ("path", "mode"),
    [("", 0o700), ("echo", 0o700), ("echo", 0o744), ("echo/config.pbtxt", 0o600), ("code", 0o700)],
)
def test_a_folder_or_file_that_may_not_be_read_is_named_with_what_to_do(
    repository: Path, path: str, mode: int
) -> None:
    (repository / path).chmod(mode)
    sentence = check_as_another_user(repository)
    assert sentence.startswith(f"{repository / path} cannot be read by user {USER}: make the models readable")
    assert "docker run --user" in sentence


def test_what_is_no_part_of_a_model_may_be_anybodys(repository: Path) -> None:
    for name in ("lost+found", ".git"):
        (repository / name).mkdir(0o700)
    (repository / ".lock").touch(0o600)
    (repository / "echo" / "link").symlink_to("/nowhere")
    assert check_as_another_user(repository) == ""


def test_a_repository_that_is_not_there_is_not_for_this_check(tmp_path: Path) -> None:
    assert list(unreadable(tmp_path / "none")) == []
