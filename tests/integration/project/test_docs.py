"""The documentation says all there is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
from flask import Flask

from sm.client import base, payloads, result_kinds, results
from sm.plugins.loading import discover
from sm.router.classify import ClassifiedRequest
from sm.router.routes import (
    control_routes,
    execution_parameters,
    invocations,
    model_routes,
    pages,
    response_stream,
    websocket_route,
)
from sm.settings import HERE, markdown, table

DOCS = HERE / "docs"
#: What the dispatcher calls, not a client.
INTERNAL = {
    "attach_request",
    "field_of",
    "may_have_caused",
    "parameter_names",
    "required_models",
    "streams",
    "model_config",
    "model_post_init",
    "names_of",
    "png",
    "as_json",
    "describe",
}
#: Described by what they are for: ``self.triton`` and what its calls give.
UNNAMED = {"ResultKind", "Triton", "ModelMetadata", "TensorMetadata"}
CLIENTS = [found.name for found in discover((HERE / "clients",))]


def test_the_picture_of_a_requests_way_names_modules_and_types_that_there_are() -> None:
    page = (DOCS / "inside/way-of-a-request.md").read_text()
    picture = page.partition("```mermaid")[2].partition("```")[0]
    modules = set(re.findall(r"\w+(?:/\w+)+\.py", picture))
    assert len(modules) > 10
    assert [
        name for name in modules if not name.startswith("clients/") and not (HERE / "sm" / name).exists()
    ] == []
    types = set(re.findall(r"\|(\w+)\|", picture)) - {"8080"}
    assert types == {kind.__name__ for kind in get_args(ClassifiedRequest)}


def test_every_setting_is_documented_with_its_default() -> None:
    page = (DOCS / "run/settings.md").read_text()
    for row in markdown(table({})):
        assert row in page, "sm settings --markdown prints this row"


def test_every_route_is_documented() -> None:
    app = Flask("documented")
    # The routes are only listed, none is called.
    app.register_blueprint(invocations.blueprint(None, local_endpoints=True))  # type: ignore[arg-type]
    app.register_blueprint(response_stream.blueprint(None))  # type: ignore[arg-type]
    app.register_blueprint(websocket_route.blueprint(None, 1, 1, bool))  # type: ignore[arg-type]
    app.register_blueprint(control_routes.blueprint(None))  # type: ignore[arg-type]
    app.register_blueprint(execution_parameters.blueprint(None))  # type: ignore[arg-type]
    app.register_blueprint(pages.blueprint(None))  # type: ignore[arg-type]
    app.register_blueprint(model_routes.loading(None, {}))  # type: ignore[arg-type]
    app.register_blueprint(model_routes.invoking(None))  # type: ignore[arg-type]
    page = (DOCS / "inside/way-of-a-request.md").read_text()
    for rule in app.url_map.iter_rules():
        if rule.endpoint != "static":
            assert f" {rule.rule}`" in page, rule.rule


@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_has_a_sample_a_golden_answer_and_an_entry(name: str) -> None:
    sample = HERE / "clients" / name / "sample"
    for part in ("payload.json", "golden.json", "README.md"):
        assert (sample / part).is_file(), part
    assert f"`{name}`" in (DOCS / "clients/guide.md").read_text()


def public(kind: type) -> set[str]:
    """What a class has of its own to be used by others."""
    fields = getattr(kind, "model_fields", {})
    return {name for name in (*vars(kind), *fields) if not name.startswith("_")}


@pytest.mark.parametrize("module", [base, payloads, results, result_kinds])
def test_the_client_reference_has_all_that_a_client_uses(module: ModuleType) -> None:
    page = (DOCS / "clients/reference.md").read_text()
    kinds = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__
    ]
    assert kinds
    for kind in kinds:
        for name in public(kind) - INTERNAL:
            assert re.search(rf"\b{name}\b", page), f"{kind.__name__}.{name}"
        assert kind.__name__ in page or kind.__name__ in UNNAMED, kind.__name__


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", *patterns], cwd=HERE, capture_output=True, text=True, check=True
    )
    return [HERE / line for line in listing.stdout.splitlines()]


def test_every_link_of_a_page_leads_somewhere() -> None:
    pages = tracked("*.md")
    assert pages
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_tracked_picture_and_weight_is_in_the_notice() -> None:
    notice = (HERE / "NOTICE").read_text()
    for file in tracked("*.png", "*.jpg", "*.jpeg", "*.webp", "*.npz"):
        assert file.name in notice, file


def test_no_error_status_is_without_its_row() -> None:
    from sm import errors

    page = (DOCS / "inside/way-of-a-request.md").read_text()
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.TriremeError)
    ]
    for kind in kinds:
        assert f"`{kind.code}`" in page or kind in (errors.TriremeError, errors.CallerGone), kind
