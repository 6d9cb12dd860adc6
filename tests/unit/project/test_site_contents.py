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


def test_every_public_name_is_on_the_api_page() -> None:
    page = (HERE / "docs/clients/api.rst").read_text()
    assert [name for name in __all__ if f" sm.client.{name}\n" not in page] == []
