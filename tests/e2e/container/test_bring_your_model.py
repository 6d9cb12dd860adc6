"""Every command of docs/start/bring-your-model.md, run as written: here, and with the image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sm.commands.golden import differences
from sm.settings import HERE
from tests.support.boxes import free_port
from tests.support.containers import podman
from tests.support.pages import code_blocks, run_commands

PAGE = "start/bring-your-model.md"
*HERE_RUN, IN_CONTAINER = code_blocks(PAGE)
#: The answers to the two requests, as the page shows them.
ANSWERS = [json.loads(line) for line in code_blocks(PAGE, "json")[0].splitlines()]


@pytest.mark.exhaustive
def test_the_model_is_served_as_the_page_says_here_and_by_the_container(tmp_path: Path, image: str) -> None:
    (tmp_path / ".venv").symlink_to(HERE / ".venv")
    assert not any("docker" in block for block in HERE_RUN)
    assert list(differences(run_commands("\n".join(HERE_RUN), tmp_path, free_port()), ANSWERS)) == []
    # A test's files are private, and the container has another user.
    for path in (tmp_path, tmp_path / "shop"):
        path.chmod(0o755)
    port = free_port()
    name = f"shop-{port}"
    command = IN_CONTAINER.replace("trireme:cpu", image).replace("8080:8080", f"{port}:8080")
    command = command.replace("docker", "podman").replace(" shop", f" {name}")
    try:
        answers = run_commands(command, tmp_path / "shop", port)
    finally:
        podman("rm", "--force", "--ignore", "--time", "0", name)
    assert list(differences(answers, ANSWERS[:1])) == []
