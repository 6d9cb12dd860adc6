"""Read the code blocks of a documentation page, and run its commands as written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sm.settings import HERE

#: As a page of ``docs``.
README = "../README.md"


def code_blocks(page: str, language: str = "sh") -> list[str]:
    """Return the code blocks of one language in a page of ``docs``, in order."""
    return re.findall(rf"```{language}\n(.*?)```", (HERE / "docs" / page).read_text(), re.S)


def code_block(page: str, language: str, words: str) -> str:
    """Return the only code block of a page that contains ``words``."""
    (found,) = [block for block in code_blocks(page, language) if words in block]
    return found


def curl_commands(page: str) -> list[str]:
    """Return the curl commands of a page, each with the lines that it goes on in."""
    return re.findall(r"^curl (?:.|\n)*?(?=\n(?:```|curl ))", (HERE / "docs" / page).read_text(), re.M)


def run_commands(
    commands: str, folder: Path, port: int, environment: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Run shell commands in ``folder`` against the box at ``port``, by default with this checkout's ``sm``.

    Returns:
        The JSON responses among what the commands print.

    Raises:
        AssertionError: A command failed.
    """
    # Even if the virtual environment belongs to another checkout.
    own = {"PYTHONPATH": str(HERE), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    completed = subprocess.run(
        ["bash", "-euc", commands.replace("localhost:8080", f"127.0.0.1:{port}")],
        cwd=folder,
        env={**(environment or {**os.environ, **own}), "SAGEMAKER_BIND_TO_PORT": str(port)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert completed.returncode == 0, f"{commands}\n{completed.stdout[-3000:]}\n{completed.stderr[-3000:]}"
    # The box's log lines are in between, and curl prints no newline after a body.
    found = re.finditer(r'\{"(id|model_?name)":', completed.stdout)
    return [json.JSONDecoder().raw_decode(completed.stdout, at.start())[0] for at in found]
