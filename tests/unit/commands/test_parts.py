"""What a command of the runtime uses of the tools, where they are installed."""

from __future__ import annotations

import re
import sys

import pytest

from sm.commands import DEVELOPER_MACHINE, part_of_tools
from sm.errors import CommandError


def test_without_the_tools_an_error_says_what_needs_them_and_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "trireme_tools.build.exporting")
    monkeypatch.setitem(sys.modules, "trireme_tools.build", None)
    with pytest.raises(CommandError, match=f"--source mine .*{re.escape(DEVELOPER_MACHINE)}"):
        part_of_tools("build.exporting", "--source mine")
