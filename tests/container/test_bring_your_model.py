"""Every command of docs/17-bring-your-model.md, run as written: here, and with the image."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sm.golden import differences
from sm.settings import HERE
from tests.box.running import free_port
from tests.container.running import podman

PAGE = (HERE / "docs" / "17-bring-your-model.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.S)
#: What the page says that the two requests are answered.
ANSWERS = [json.loads(line) for line in re.findall(r"```json\n(.*?)```", PAGE, re.S)[0].splitlines()]


def run(block: str, folder: Path, port: int) -> list[dict[str, object]]:
    """The answers in JSON that the commands printed, among whatever else they print."""
    # This tree's program, whichever tree the virtual environment belongs to.
    variables = {**os.environ, "SAGEMAKER_BIND_TO_PORT": str(port), "PYTHONPATH": str(HERE)}
    done = subprocess.run(
        ["bash", "-euc", block.replace("localhost:8080", f"127.0.0.1:{port}")],
        cwd=folder,
        env={**variables, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    # The box's log is between them, and curl ends no line.
    found = re.finditer(r'\{"model_?name":', done.stdout)
    return [json.JSONDecoder().raw_decode(done.stdout, at.start())[0] for at in found]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, object]]]:
    """The folder when all but the container's commands have run, and the answers on the way."""
    inside = tmp_path_factory.mktemp("page")
    (inside / ".venv").symlink_to(HERE / ".venv")
    answers = run("\n".join(BLOCKS[:-1]), inside, free_port())
    return inside / "shop", answers


def test_the_page_is_in_two_parts() -> None:
    assert len(BLOCKS) >= 8
    assert [block for block in BLOCKS if "docker" in block] == BLOCKS[-1:]


def test_the_model_is_served_as_the_page_says(shop: tuple[Path, list[dict[str, object]]]) -> None:
    assert list(differences(shop[1], ANSWERS)) == []


def test_the_archive_is_served_by_the_container(
    shop: tuple[Path, list[dict[str, object]]],
    image: str,
) -> None:
    folder, port = shop[0], free_port()
    # Made by a test, whose files nobody else may read: the container's user is another one.
    for path in (folder.parent, folder):
        path.chmod(0o755)
    name = f"shop-{port}"
    command = BLOCKS[-1].replace("trireme:cpu", image).replace("8080:8080", f"{port}:8080")
    try:
        answers = run(command.replace("docker", "podman").replace(" shop", f" {name}"), folder, port)
    finally:
        podman("rm", "--force", "--ignore", "--time", "0", name)
    assert list(differences(answers, ANSWERS[:1])) == []
