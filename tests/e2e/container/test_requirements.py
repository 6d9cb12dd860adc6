"""``code/requirements.txt`` is installed inside the image, whose environment has no pip."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.containers import CLIENT_SOURCE, running_container, write_team_repository
from tests.support.wheels import write_wheel

#: A client that returns a number of a package that the image does not have.
NEEDS_TINY = f"import trireme_tiny\n{CLIENT_SOURCE}".replace("len(text.text)", "trireme_tiny.NUMBER")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The echo model, and a client that imports ``trireme_tiny``."""
    folder = write_team_repository(tmp_path / "repository", NEEDS_TINY)
    (folder / "code" / "requirements.txt").write_text("trireme-tiny>=1\n")
    return folder


def test_wheels_beside_the_code_are_installed_in_a_read_only_container(image: str, repository: Path) -> None:
    write_wheel(repository / "code" / "wheels", "trireme_tiny", text="NUMBER = 17\n")
    flags = ("-e", "TRIREME_INSTALL_REQUIREMENTS=true", "--read-only", "--tmpfs", "/tmp")
    with running_container(image, repository, *flags) as box:
        answer = box.send(b'{"modelname": "team", "payload": {"text": "any"}}')
    assert answer.json()["result"] == [17.0, 17.0, 17.0]
