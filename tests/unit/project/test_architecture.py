"""The architecture page shows the layers of the import contract, and the contributors' guide names existing places."""

from __future__ import annotations

import importlib
import inspect
import re
from functools import reduce
from typing import Any

import pytest

from sm.router.request_flow import RequestFlow
from sm.settings import HERE
from tests.support.architecture import PAGE, layers, with_diagram


def test_the_diagram_shows_the_import_contract() -> None:
    assert with_diagram(PAGE.read_text()) == PAGE.read_text(), (
        "update it: python -m tests.support.architecture"
    )


def test_every_module_of_the_first_level_has_a_layer() -> None:
    layered = {module for layer in layers() for module in layer}
    folder = HERE / "sm"
    modules = {f"sm.{path.stem}" for path in folder.glob("*.py") if path.stem != "__init__"}
    packages = {f"sm.{path.parent.name}" for path in folder.glob("*/__init__.py")}
    assert modules | packages == layered


def test_every_place_that_the_contributors_guide_names_exists() -> None:
    places = re.findall(r"`((?:sm|extensions)/[\w/.]+)`", (HERE / "CONTRIBUTING.md").read_text())
    assert len(places) > 10
    assert [place for place in places if not (HERE / place).exists()] == []


def find(module: str, name: str) -> Any:
    """Return what a page calls ``sm/a/b.py:Name``."""
    return reduce(getattr, name.split("."), importlib.import_module(module.replace("/", ".")))


#: A story tells of reading a message, and of entering an invocation for its record.
WRITTEN_AS = {"__enter__": "with invocation", "read_message": "read()", "enter": "slot.enter("}
STORIES = [
    story
    for page in ("way-of-a-request", "supervisor", "models", "faults")
    for story in re.split(r"^##? ", (HERE / f"docs/inside/{page}.md").read_text(), flags=re.M)
    if "| step | function |" in story
]


@pytest.mark.parametrize("story", STORIES, ids=[story.partition("\n")[0] for story in STORIES])
def test_a_story_names_its_functions_in_their_order(story: str) -> None:
    rows = re.findall(r"^\| ([^|]+) \| `(sm/[\w/]+)\.py:([\w.]+)` \|", story, re.M)
    assert len(rows) > 5 and len(STORIES) == 6
    assert all(callable(find(module, name)) for _, module, name in rows)
    # What the story's main function calls itself has a number.
    main = re.search(r"`(sm/[\w/]+)\.py:([\w.]+)` (?:is the whole|replaces|looks for)", story)
    source = inspect.getsource(find(main[1], main[2]) if main else RequestFlow.answer)
    called = [name.rpartition(".")[2] for step, _, name in rows if step[0].isdigit()]
    # A session command is finished earlier, so that the last place counts.
    places = [source.rindex(WRITTEN_AS.get(name, f"{name}(")) for name in called]
    assert places == sorted(places)
