"""A class's name means one thing: no two classes of ours share one."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: Files that people copy and edit: each stands alone.
COPIED = ROOT / "tools/trireme_tools/scaffold/templates"


def test_no_two_classes_have_the_same_name() -> None:
    files = [
        file
        for folder in ("sm", "extensions/trireme_extensions", "tools/trireme_tools")
        for file in (ROOT / folder).rglob("*.py")
        if COPIED not in file.parents
    ]
    names = Counter(
        node.name
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert sorted(name for name, number in names.items() if number > 1) == []
