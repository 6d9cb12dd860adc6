"""Which tests stay together where several run at once (``make test``)."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

#: Folders whose tests all share something that takes long to make: the image, a box in each mode, Triton.
TOGETHER = {
    "container": "image",
    "push": "image",
    "contract": "contract",
    "triton": "triton",
    "gateway": "gateway",
    "access": "access",
}


class Together(LoadScopeScheduling):  # type: ignore[misc]  # the plugin has no types
    """The tests of one file stay in one process; so do those of the folders above."""

    def _split_scope(self, nodeid: str) -> str:
        file = PurePosixPath(nodeid.partition("::")[0])
        return next((TOGETHER[part] for part in file.parts[1:-1] if part in TOGETHER), str(file))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Its own way of keeping tests together (``loadgroup``) does nothing under pytest 9.2."""
    return Together(config, log)
