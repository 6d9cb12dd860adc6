"""Write the picture and the table of docs/inside/architecture.md: ``python -m tests.support.architecture``."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from sm.settings import HERE

PAGE = HERE / "docs" / "inside" / "architecture.md"
#: Which package uses which, and for what; the picture of the page. Others that only help are left out.
RELATIONS = (
    ("cli", "server", "serve"),
    ("cli", "commands", "sm test, inspect"),
    ("server", "router", "runs in each worker"),
    ("server", "control", "runs in one process"),
    ("server", "triton", "starts, watches"),
    ("server", "model_processes", "searches, decides"),
    ("router", "plugins", "finds the client"),
    ("router", "triton", "/v2, generate"),
    ("control", "models", "POST /models"),
    ("models", "triton", "loads, unloads"),
    ("triton", "model_processes", "whose answer it is"),
    ("models", "plugins", "clients of archives"),
    ("plugins", "client", "loads, checks"),
    ("client", "triton", "tensors"),
    ("models", "repository", "unpacks, checks"),
    ("server", "repository", "checks, completes"),
)
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
    """Mermaid, which GitHub draws, and a table with the subject of each package and module."""
    arrows = [f'    {user} -- "{purpose}" --> {used}' for user, used, purpose in RELATIONS]
    rows = [f"| `{module}` | {subject(module)} |" for layer in layers() for module in sorted(layer)]
    head = ["", "| from top to bottom | subject |", "|---|---|"]
    return "\n".join(["```mermaid", "flowchart LR", *arrows, "```", *head, *rows])


def with_diagram(page: str) -> str:
    """The page with today's diagram between its marks."""
    return re.sub(f"{START}.*?{END}", lambda _: f"{START}\n{diagram()}\n{END}", page, flags=re.S)


if __name__ == "__main__":
    PAGE.write_text(with_diagram(PAGE.read_text()))
