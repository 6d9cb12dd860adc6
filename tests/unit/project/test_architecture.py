"""The architecture page shows the layers of the import contract, and the contributors' guide names existing places."""

from __future__ import annotations

import re

from sm.settings import HERE
from tests.support.architecture import PAGE, RELATIONS, layers, subject, with_diagram


def test_the_diagram_shows_the_import_contract() -> None:
    assert with_diagram(PAGE.read_text()) == PAGE.read_text(), (
        "update it: python -m tests.support.architecture"
    )


def test_the_picture_shows_every_package_that_is_no_foundation() -> None:
    folders = {path.parent.name for path in (HERE / "sm").glob("*/__init__.py")}
    drawn = {name for user, used, _ in RELATIONS for name in (user, used)}
    assert drawn == folders - {"http", "tracing"} | {"cli"}


def test_every_module_of_the_first_level_has_a_layer() -> None:
    layered = {module for layer in layers() for module in layer}
    folder = HERE / "sm"
    modules = {f"sm.{path.stem}" for path in folder.glob("*.py") if path.stem != "__init__"}
    packages = {f"sm.{path.parent.name}" for path in folder.glob("*/__init__.py")}
    assert modules | packages == layered


def test_every_module_in_a_layer_has_a_one_line_subject() -> None:
    assert [module for layer in layers() for module in layer if not subject(module)] == []


def test_every_place_that_the_contributors_guide_names_exists() -> None:
    places = re.findall(r"`(sm/[\w/.]+)`", (HERE / "CONTRIBUTING.md").read_text())
    assert len(places) > 10
    assert [place for place in places if not (HERE / place).exists()] == []
