"""Each workaround of the pinned Triton is listed, and a new version makes somebody go through the list."""

from __future__ import annotations

import re

from sm.settings import HERE
from tests.support.quirks import QUIRKS, VERSION, WHEEL
from trireme_tools.prepare import servers


def test_a_new_triton_makes_somebody_try_each_workaround() -> None:
    assert servers.WHEEL.version == WHEEL, (
        "the pinned Triton changed: run the test of each quirk in tests/support/quirks.py without its workaround, "
        "delete what is not needed any more, then name the new version there"
    )


def test_every_workaround_in_the_code_is_listed() -> None:
    number = re.compile(rf"Triton {VERSION[0]}\.{VERSION[1]}\b")
    modules = {
        ".".join(path.relative_to(HERE).with_suffix("").parts)
        for path in (HERE / "sm").rglob("*.py")
        if number.search(path.read_text())
    }
    assert modules == {quirk.module for quirk in QUIRKS}


def test_the_test_of_each_fault_exists() -> None:
    assert [quirk.test for quirk in QUIRKS if not (HERE / "tests" / quirk.test).is_file()] == []
