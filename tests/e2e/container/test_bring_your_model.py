"""Every command of docs/start/bring-your-model.md, run as written: here, and with the image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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

Shop = tuple[Path, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """The folder after all commands but the container's, and the answers of these commands."""
    folder = tmp_path_factory.mktemp("page")
    (folder / ".venv").symlink_to(HERE / ".venv")
    answers = run_commands("\n".join(HERE_RUN), folder, free_port())
    return folder / "shop", answers


@pytest.mark.exhaustive
def test_the_model_is_served_as_the_page_says(shop: Shop) -> None:
    assert not any("docker" in block for block in HERE_RUN)
    assert list(differences(shop[1], ANSWERS)) == []


@pytest.mark.exhaustive
def test_the_archive_is_served_by_the_container(shop: Shop, image: str) -> None:
    folder, port = shop[0], free_port()
    # A test's files are private, and the container has another user.
    for path in (folder.parent, folder):
        path.chmod(0o755)
    name = f"shop-{port}"
    command = IN_CONTAINER.replace("trireme:cpu", image).replace("8080:8080", f"{port}:8080")
    try:
        answers = run_commands(command.replace("docker", "podman").replace(" shop", f" {name}"), folder, port)
    finally:
        podman("rm", "--force", "--ignore", "--time", "0", name)
    assert list(differences(answers, ANSWERS[:1])) == []
