"""Write the layer diagram of docs/inside/architecture.md: ``python -m tests.support.architecture``."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from sm.settings import HERE

PAGE = HERE / "docs" / "inside" / "architecture.md"
#: Less space between two layers than Mermaid's default, 50 pixels: there are many.
SPACING = '%%{init: {"flowchart": {"rankSpacing": 16}}}%%'
START, END = "<!-- layers -->", "<!-- /layers -->"


def layers() -> list[list[str]]:
    """The layers of the import-linter contract, the highest first; modules of one layer side by side."""
    text = (HERE / "pyproject.toml").read_text()
    block = re.search(r"^layers = \[\n(.*?)^\]", text, re.M | re.S)
    assert block, "pyproject.toml has no import-linter layers"
    return [re.split(r" [:|] ", layer) for layer in re.findall(r'^    "([^"]+)",$', block[1], re.M)]


def subject(module: str) -> str:
    """The first line of a module's docstring."""
    path = HERE / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    lines = (ast.get_docstring(ast.parse(file.read_text())) or "").splitlines()
    return lines[0].replace("``", "`") if lines else ""


def diagram() -> str:
    """Mermaid, which GitHub draws, and a table with the subject of each layer."""
    names = [", ".join(module.removeprefix("sm.") for module in layer) for layer in layers()]
    boxes = [f'    L{number}["{name}"]' for number, name in enumerate(names)]
    arrows = [f"    L{number} --> L{number + 1}" for number in range(len(names) - 1)]
    rows = [f"| `{module}` | {subject(module)} |" for layer in layers() for module in sorted(layer)]
    return "\n".join(
        [
            "```mermaid",
            SPACING,
            "flowchart TD",
            *boxes,
            *arrows,
            "```",
            "",
            "| layer | subject |",
            "|---|---|",
            *rows,
        ]
    )


def with_diagram(page: str) -> str:
    """The page with today's diagram between its marks."""
    return re.sub(f"{START}.*?{END}", lambda _: f"{START}\n{diagram()}\n{END}", page, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(with_diagram(PAGE.read_text()))
