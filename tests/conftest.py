"""Which tests stay together where several run at once (``make test``)."""

from __future__ import annotations

from pathlib import Path

import pytest

#: Folders whose tests all share something that takes long to make: the image, a box in each mode, Triton.
TOGETHER = {
    "container": "image",
    "push": "image",
    "contract": "contract",
    "triton": "triton",
    "gateway": "gateway",
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests of one file stay in one process; so do those of the folders above."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    tests = Path(__file__).parent
    for item in items:
        file = item.path.relative_to(tests)
        item.add_marker(pytest.mark.xdist_group(TOGETHER.get(file.parts[0], str(file))))
