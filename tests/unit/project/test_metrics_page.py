"""The page of metrics lists each series that the box has, and none that it has not."""

from __future__ import annotations

import re

from sm.settings import HERE

PAGE = (HERE / "docs/run/metrics.md").read_text()
SOURCES = ("sm/metrics.py", "sm/router/routes/box_series.py")


def test_the_table_has_exactly_the_series_of_the_code() -> None:
    text = "".join((HERE / source).read_text() for source in SOURCES)
    written = set(re.findall(r'"(trireme_[a-z_]+)"', text)) - {"trireme_restarts"}
    assert len(written) > 15
    assert set(re.findall(r"^\| `(trireme_[a-z_]+)` \|", PAGE, re.MULTILINE)) == written


def test_every_name_on_the_pages_is_a_series() -> None:
    listed = set(re.findall(r"^\| `(trireme_[a-z_]+)` \|", PAGE, re.MULTILINE))
    for page in HERE.glob("docs/*/*.md"):
        named = set(
            re.findall(r"`(trireme_[a-z_]+_(?:total|seconds|bytes|length|flight|limit))\b", page.read_text())
        )
        assert named - listed == set(), page
