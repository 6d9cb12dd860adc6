"""Print how large the parts of the repository are: ``python -m tests.support.sizes``.

A line of code is one without blank lines, comments and docstrings. ``tests/unit/project/test_sizes.py`` holds the
ceilings of :data:`CEILINGS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sm.settings import HERE


class Ceiling(NamedTuple):
    """The largest size that a part may have, and the size to reach."""

    most: int
    goal: int


#: A change that goes over one of these makes something else smaller, or moves it to where it belongs: an extension, a
#: tool. What is imported is what the process's modules import, at once or later, themselves or through others.
CEILINGS = {
    "core, sm/: lines of code": Ceiling(21_464, 21_400),
    # The four that the goal is for: tasks, convert, toolkit and search.
    "extensions/: lines of code": Ceiling(6_892, 6_900),
    # What watches a box, which was part of the core: nothing to reach but what it is.
    "extensions/, observe/: lines of code": Ceiling(1_360, 1_360),
    "tools/: lines of code": Ceiling(14_345, 9_000),
    "a worker imports: files": Ceiling(104, 115),
    "a worker imports: lines of code": Ceiling(14_058, 16_500),
    "the control plane imports: files": Ceiling(59, 66),
    "the control plane imports: lines of code": Ceiling(8_348, 10_000),
}
#: The extension with a size of its own.
OBSERVE = "extensions/trireme_extensions/observe"


def code_lines(text: str) -> int:
    """Count the lines of code of a Python file. A string that begins a line with three quotes is a docstring."""
    text = re.sub(r'^ *r?""".*?"""$', "", text, flags=re.M | re.S)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text.splitlines())


def count(folders: Iterable[str]) -> tuple[int, int]:
    """Return the number of Python files below ``folders``, and of their lines of code."""
    files = [path for folder in folders for path in (HERE / folder).rglob("*.py")]
    return len(files), sum(code_lines(path.read_text()) for path in files)


@cache
def import_graph() -> Any:
    """Return the imports of the core, also those within functions; import-linter reads them the same way."""
    import grimp

    return grimp.build_graph("sm", cache_dir=None)


def imported(module: str) -> tuple[int, int]:
    """Return how many modules of the core a module imports, through others too, and their lines of code."""
    files = [file_of(name) for name in import_graph().find_upstream_modules(module)]
    return len(files), sum(code_lines(file.read_text()) for file in files)


def file_of(module: str) -> Path:
    """Return the file of a module."""
    path = HERE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def measured() -> dict[str, int]:
    """Return the size of each part that has a ceiling."""
    worker, control = imported("sm.server.worker"), imported("sm.server.control_plane")
    core, extensions, tools = (count([folder])[1] for folder in ("sm", "extensions", "tools"))
    observe = count([OBSERVE])[1]
    sizes = (core, extensions - observe, observe, tools, *worker, *control)
    return dict(zip(CEILINGS, sizes, strict=True))


def others() -> dict[str, int]:
    """Return sizes that have no ceiling."""
    lines = {
        f"{folder}/: lines": sum(len(path.read_text().splitlines()) for path in (HERE / folder).rglob("*.py"))
        for folder in ("tests", "tests/support", "bench")
    }
    files = {f"{folder}/: files": count([folder])[0] for folder in ("sm", "extensions", "tools")}
    return {**files, **lines}


if __name__ == "__main__":
    row = "{:<48}{:>10}{:>10}{:>10}"
    print(row.format("", "now", "at most", "to reach"))  # noqa: T201
    for name, size in measured().items():
        print(row.format(name, *(f"{number:,}" for number in (size, *CEILINGS[name]))))  # noqa: T201
    for name, size in others().items():
        print(row.format(name, f"{size:,}", "", ""))  # noqa: T201
