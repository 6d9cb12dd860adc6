"""The page of metrics lists exactly the series of the box."""

from __future__ import annotations

import re

from sm.settings import HERE

PAGE = (HERE / "docs/run/metrics.md").read_text()
SOURCES = ("sm/metrics.py", "sm/control/box_series.py")


def test_the_table_lists_exactly_the_series_in_the_code() -> None:
    text = "".join((HERE / source).read_text() for source in SOURCES)
    series = set(re.findall(r'"(trireme_[a-z_]+)"', text)) - {"trireme_restarts"}
    assert len(series) > 15
    assert set(re.findall(r"^\| `(trireme_[a-z_]+)` \|", PAGE, re.MULTILINE)) == series


def test_every_series_that_a_page_mentions_exists() -> None:
    listed = set(re.findall(r"^\| `(trireme_[a-z_]+)` \|", PAGE, re.MULTILINE))
    for page in HERE.glob("docs/*/*.md"):
        mentioned = set(
            re.findall(r"`(trireme_[a-z_]+_(?:total|seconds|bytes|length|flight|limit))\b", page.read_text())
        )
        assert mentioned - listed == set(), page
