"""A repository that the box's user cannot read is refused at start with the path."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sm.settings import HERE
from tests.support.tritons import MODELS

pytestmark = pytest.mark.core

#: Any user but root.
OTHER_USER = 1000
CHECK_SCRIPT = """
import os, sys
from pathlib import Path
from sm.server.startup import check_readable
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
    # Other users cannot read pytest's own folders.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        MODELS["echo"].write(Path(folder) / "model" / "echo")
        (Path(folder) / "model" / "code").mkdir()
        yield Path(folder) / "model"


def check_as_another_user(repository: Path) -> str:
    """Run the check as a user who is not root; return its sentence, or nothing."""
    command = [sys.executable, "-c", CHECK_SCRIPT.format(user=OTHER_USER), str(repository)]
    completed = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
    return completed.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files that its own other user may not read")
@pytest.mark.parametrize(
    ("path", "mode"),
    [("", 0o700), ("echo", 0o700), ("echo", 0o744), ("echo/config.pbtxt", 0o600), ("code", 0o700)],
)
def test_an_unreadable_folder_or_file_is_named_with_the_next_step(
    repository: Path, path: str, mode: int
) -> None:
    (repository / path).chmod(mode)
    sentence = check_as_another_user(repository)
    assert sentence.startswith(f"{repository / path} ")
    assert str(OTHER_USER) in sentence
    assert "docker run --user" in sentence


def test_files_that_belong_to_no_model_may_be_unreadable(repository: Path) -> None:
    for name in ("lost+found", ".git"):
        (repository / name).mkdir(0o700)
    (repository / ".lock").touch(0o600)
    (repository / "echo" / "link").symlink_to("/nowhere")
    assert check_as_another_user(repository) == ""
