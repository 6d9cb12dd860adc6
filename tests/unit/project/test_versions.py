"""One version: what names it beside ``sm/__init__.py`` agrees."""

from __future__ import annotations

import re

import tomllib
import yaml

from sm import __version__
from sm.settings import HERE


def test_every_file_that_names_the_version_agrees() -> None:
    chart = yaml.safe_load((HERE / "deploy/helm/Chart.yaml").read_text())
    named = {"chart": chart["version"], "chart's box": chart["appVersion"]}
    for part in ("extensions", "tools"):
        project = tomllib.loads((HERE / part / "pyproject.toml").read_text())["project"]
        (named[part],) = (
            need.partition("==")[2] for need in project["dependencies"] if need.startswith("trireme-serving")
        )
    assert {name: version for name, version in named.items() if version != __version__} == {}
    assert re.search(rf"^## \[{re.escape(__version__)}\]", (HERE / "CHANGELOG.md").read_text(), re.M)
