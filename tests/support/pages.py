"""The commands of a page of the documentation, run as written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from sm.settings import HERE


def blocks(page: str, kind: str = "sh") -> list[str]:
    """The code of one kind in a page of ``docs``, in its order."""
    return re.findall(rf"```{kind}\n(.*?)```", (HERE / "docs" / page).read_text(), re.S)


def run(commands: str, folder: Path, port: int) -> list[dict[str, Any]]:
    """The answers in JSON that they print, among whatever else they print; AssertionError if one fails."""
    # This tree's program, whichever tree the virtual environment belongs to.
    variables = {**os.environ, "SAGEMAKER_BIND_TO_PORT": str(port), "PYTHONPATH": str(HERE)}
    done = subprocess.run(
        ["bash", "-euc", commands.replace("localhost:8080", f"127.0.0.1:{port}")],
        cwd=folder,
        env={**variables, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    # The box's log is between them, and curl ends no line.
    found = re.finditer(r'\{"(id|model_?name)":', done.stdout)
    return [json.JSONDecoder().raw_decode(done.stdout, at.start())[0] for at in found]
