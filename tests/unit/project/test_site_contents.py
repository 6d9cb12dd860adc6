"""The site's navigation lists every page, and its Python API every public name; ``make docs`` checks the rest."""

from __future__ import annotations

import re

from sm.client import __all__
from sm.settings import HERE


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"(?:file|root): (\S+)", (HERE / "docs/_site/contents.yml").read_text()))
    paths = [*HERE.glob("docs/*.md"), *HERE.glob("docs/*/*.md"), *HERE.glob("bench/reports/*.md")]
    pages = {str(page.relative_to(HERE).with_suffix("")) for page in paths}
    assert len(pages) > 30
    assert pages - listed == set(), "add it to docs/_site/contents.yml"


def test_the_first_page_and_the_readme_link_to_every_page() -> None:
    pages = {path for suffix in ("md", "rst") for path in HERE.glob(f"docs/*/*.{suffix}")}
    for start in (HERE / "docs/index.md", HERE / "README.md"):
        links = re.findall(r"\]\(([^)#]+)", start.read_text())
        linked = {(start.parent / link).resolve() for link in links if "://" not in link}
        assert sorted(str(page) for page in pages - linked) == [], f"add it to {start.name}"


def test_every_public_name_is_on_the_api_page() -> None:
    page = (HERE / "docs/clients/api.rst").read_text()
    assert [name for name in __all__ if f" sm.client.{name}\n" not in page] == []


def test_every_page_begins_with_a_sentence() -> None:
    """The sentence says what the page is for; tables, pictures and code come after it."""
    pages = [*HERE.glob("docs/**/*.md"), *HERE.glob("bench/**/*.md"), HERE / "CONTRIBUTING.md"]
    text_after_title = {
        page: re.sub(r"\A# .*\n+", "", page.read_text()) for page in pages if "results" not in page.parts
    }
    assert len(text_after_title) > 40
    assert [
        page.name for page, text in text_after_title.items() if not re.match(r"(?!```)[A-Z`\[*]", text)
    ] == []
