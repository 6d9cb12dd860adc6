"""Pages list every page of the site, public name, alert and field of a checkpoint."""

from __future__ import annotations

import re
from typing import Any

import yaml

from sm.client import __all__
from sm.settings import HERE
from tests.support.checkpoint_fields import PAGE, with_tables


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"(?:file|root): (\S+)", (HERE / "docs/_site/contents.yml").read_text()))
    folders = ("docs", "docs/*", "bench/reports", "bench/results")
    paths = [page for folder in folders for page in HERE.glob(f"{folder}/*.md")]
    pages = {str(page.relative_to(HERE).with_suffix("")) for page in paths}
    assert len(pages) > 30
    assert pages - listed == set(), "add it to docs/_site/contents.yml"


def test_the_table_of_all_pages_has_every_page_of_the_parts() -> None:
    table = (HERE / "docs/index.md").read_text().partition("## All pages")[2]
    parts = {
        *(f"{page.parent.name}/{page.name}" for page in HERE.glob("docs/*/*.md")),
        *(f"../bench/reports/{page.name}" for page in HERE.glob("bench/reports/*.md")),
        *(f"../{page.relative_to(HERE)}" for page in HERE.glob("examples/*/README.md")),
    }
    assert len(parts) > 60
    assert [page for page in sorted(parts) if f"({page})" not in table] == []


def test_every_public_name_is_on_the_api_page() -> None:
    page = (HERE / "docs/clients/api.rst").read_text()
    assert [name for name in __all__ if f" sm.client.{name}\n" not in page] == []


EXAMPLE = HERE / "examples" / "monitoring"
COMPOSE: dict[str, Any] = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
METRICS_PAGE = (HERE / "docs/run/metrics.md").read_text()


def test_ports_are_published_on_loopback_only() -> None:
    for service in COMPOSE["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_the_page_lists_every_alert() -> None:
    [group] = yaml.safe_load((EXAMPLE / "alerts.yml").read_text())["groups"]
    alerts = [rule["alert"] for rule in group["rules"]]
    assert re.findall(r"^\| `(Trireme\w+)` \|", METRICS_PAGE, re.MULTILINE) == alerts


def test_the_page_has_todays_fields() -> None:
    assert with_tables(PAGE.read_text()) == PAGE.read_text(), (
        "update it: python -m tests.support.checkpoint_fields"
    )
