"""Print how large the parts of the repository are: ``python -m tests.support.sizes``; ``--keep`` writes the limit.

A line of code is one without blank lines, comments and docstrings. The unit test
``tests/unit/project/test_sizes.py`` compares the runtime with ``sizes.json``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from sm.settings import HERE

#: Lines of code of the runtime when somebody last said why it grew.
KEPT = Path(__file__).with_suffix(".json")
#: The share by which the runtime may grow before the commit has to say why.
MAX_GROWTH = 0.02
CONTROL_PLANE = "import sys, sm.control.app; print(sum(name.startswith('sm.') for name in sys.modules))"


def code_lines(text: str) -> int:
    """Count the lines of code of a Python file. A string that begins a line with three quotes is a docstring."""
    text = re.sub(r'^ *r?""".*?"""$', "", text, flags=re.M | re.S)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text.splitlines())


def count(folders: Iterable[str]) -> tuple[int, int]:
    """Return the number of Python files below ``folders``, and of their lines of code."""
    files = [path for folder in folders for path in (HERE / folder).rglob("*.py")]
    return len(files), sum(code_lines(path.read_text()) for path in files)


def runtime_lines() -> int:
    """Return the lines of code of what the container runs."""
    return count(["sm"])[1]


def table() -> list[tuple[str, str, str]]:
    """Return the rows: what is measured, its size, and the size to reach."""
    files, lines = count(["sm"])
    tool_files, tool_lines = count(["tools"])
    root = [path for path in (HERE / "sm").glob("*.py") if path.stem != "__init__"]
    imported = subprocess.run(
        [sys.executable, "-c", CONTROL_PLANE], capture_output=True, text=True, check=True, cwd=HERE
    ).stdout.strip()
    tests, helpers, bench = (
        sum(len(path.read_text().splitlines()) for path in (HERE / folder).rglob("*.py"))
        for folder in ("tests", "tests/support", "bench")
    )
    return [
        ("runtime, sm/: files", f"{files}", "170"),
        ("runtime, sm/: lines of code", f"{lines:,}", "14,500"),
        ("tools/: files", f"{tool_files}", "100"),
        ("tools/: lines of code", f"{tool_lines:,}", "9,000"),
        ("modules in the root of sm/", f"{len(root)}", "8"),
        ("modules of sm/ that the control plane imports", imported, "70"),
        ("tests/: lines", f"{tests:,}", "45,000"),
        ("tests/support/: lines", f"{helpers:,}", "6,500"),
        ("bench/: lines", f"{bench:,}", "5,000"),
    ]


if __name__ == "__main__":
    if "--keep" in sys.argv:
        KEPT.write_text(json.dumps({"runtime lines": runtime_lines()}) + "\n")
    for row in table():
        print("{:<48}{:>10}{:>10}".format(*row))  # noqa: T201
