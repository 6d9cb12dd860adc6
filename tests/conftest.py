"""Which tests stay together where several run at once (``make test``)."""

from __future__ import annotations

from pathlib import Path

import pytest

#: Folders whose tests all share something that takes long to make: the image, a box in each mode, Triton.
TOGETHER = {"container": "image", "push": "image", "contract": "contract", "triton": "triton"}


# Before the plugin's own, which reads the marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The tests of one file stay in one process; so do those of the folders above."""
    # What pytest-xdist sets in the processes it starts.
    if not config.getoption("loadgroup", False):
        return
    tests = Path(__file__).parent
    for item in items:
        file = item.path.relative_to(tests)
        item.add_marker(pytest.mark.xdist_group(TOGETHER.get(file.parts[0], str(file))))
