"""Every setting, route, error and name of the client API is documented, and every link works."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flask import Flask

from sm.client import base, payloads, results
from sm.control import model_routes, pages, routes
from sm.plugins.sources import discover
from sm.router import form_routes, invocation_routes, websocket
from sm.router.forms.table import Forms
from sm.settings import HERE
from tests.support.settings_page import markdown

pytestmark = pytest.mark.core

DOCS = HERE / "docs"
#: Names that the dispatcher uses, not a client.
INTERNAL_NAMES = (
    "answer_headers attach_request field_of may_have_caused parameter_names"
    " watches_readiness required_models streams takes_batches reads_nan takes_bodies model_config model_post_init names_of"
    " png as_json describe answers_unnamed count"
)
#: Types that the page describes as ``self.triton`` and the results of its calls, without their names.
NOT_IN_THE_REFERENCE = "Gatherer RequestContext ResultKind Triton ClientTriton ModelMetadata TensorMetadata"
CLIENTS = [source.name for source in discover((HERE / "clients",))]


def test_every_setting_is_documented_with_its_default() -> None:
    page = (DOCS / "run/settings.md").read_text()
    for row in markdown():
        assert row in page, "python -m tests.support.settings_page prints this row"


def test_every_route_is_documented() -> None:
    app = Flask("documented")
    nothing: Any = None  # the routes are only listed, and never called
    for blueprint in (
        invocation_routes.blueprint(nothing),
        form_routes.blueprint(nothing, Forms.load()),
        websocket.blueprint(nothing, 1, bool),
        routes.blueprint(nothing),
        routes.execution_parameters(nothing),
        pages.blueprint(nothing),
        model_routes.loading(nothing, {}),
    ):
        app.register_blueprint(blueprint)
    page = (DOCS / "clients/http-api.md").read_text()
    for rule in app.url_map.iter_rules():
        if rule.endpoint != "static":
            assert f" {rule.rule}`" in page, rule.rule


@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_has_a_sample_a_golden_answer_and_an_entry(name: str) -> None:
    sample = HERE / "clients" / name / "sample"
    for part in ("payload.json", "golden.json", "README.md"):
        assert (sample / part).is_file(), part
    assert f"`{name}`" in (DOCS / "clients/guide.md").read_text()


def public_names(class_: type) -> set[str]:
    """The public attributes and fields that a class itself defines."""
    fields = getattr(class_, "model_fields", {})
    return {name for name in (*vars(class_), *fields) if not name.startswith("_")}


@pytest.mark.parametrize("module", [base, payloads, results])
def test_the_client_reference_describes_every_public_name(module: ModuleType) -> None:
    page = (DOCS / "clients/reference.md").read_text()
    own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    classes = [value for value in own if isinstance(value, type) and not value.__name__.startswith("_")]
    assert classes
    for class_ in classes:
        for name in public_names(class_) - set(INTERNAL_NAMES.split()):
            assert re.search(rf"\b{name}\b", page), f"{class_.__name__}.{name}"
        assert class_.__name__ in page or class_.__name__ in NOT_IN_THE_REFERENCE.split(), class_.__name__


def tracked_files(*patterns: str) -> list[Path]:
    listing = subprocess.check_output(["git", "ls-files", *patterns], cwd=HERE, text=True)
    return [HERE / line for line in listing.splitlines()]


def test_every_relative_link_of_a_page_has_a_target() -> None:
    pages = tracked_files("*.md")
    assert pages
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_tracked_picture_and_weight_is_in_the_notice() -> None:
    notice = (HERE / "NOTICE").read_text()
    for file in tracked_files("*.png", "*.jpg", "*.jpeg", "*.webp", "*.npz"):
        assert file.name in notice, file
