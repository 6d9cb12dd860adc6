"""Read the code blocks of a documentation page, and run its commands as written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from sm.settings import HERE


def code_blocks(page: str, language: str = "sh") -> list[str]:
    """Return the code blocks of one language in a page of ``docs``, in order."""
    return re.findall(rf"```{language}\n(.*?)```", (HERE / "docs" / page).read_text(), re.S)


def run_commands(commands: str, folder: Path, port: int) -> list[dict[str, Any]]:
    """Run shell commands in ``folder`` against the box at ``port``.

    Returns:
        The JSON responses among what the commands print.

    Raises:
        AssertionError: A command failed.
    """
    # Runs this checkout's ``sm``, even if the virtual environment belongs to another one.
    variables = {**os.environ, "SAGEMAKER_BIND_TO_PORT": str(port), "PYTHONPATH": str(HERE)}
    completed = subprocess.run(
        ["bash", "-euc", commands.replace("localhost:8080", f"127.0.0.1:{port}")],
        cwd=folder,
        env={**variables, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert completed.returncode == 0, f"{commands}\n{completed.stdout[-3000:]}\n{completed.stderr[-3000:]}"
    # The box's log lines are in between, and curl prints no newline after a body.
    found = re.finditer(r'\{"(id|model_?name)":', completed.stdout)
    return [json.JSONDecoder().raw_decode(completed.stdout, at.start())[0] for at in found]
