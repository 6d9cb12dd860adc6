"""Each workaround of the pinned Triton is listed, and a new version makes somebody go through the list."""

from __future__ import annotations

import re

from sm.settings import HERE
from tests.support.quirks import QUIRKS, VERSION, WHEEL
from trireme_tools.prepare import servers


def test_a_new_triton_makes_somebody_try_each_workaround() -> None:
    wheel = servers.WHEEL
    assert f"\n{wheel.name}=={wheel.version} \\\n" in (HERE / "requirements.lock").read_text()
    assert wheel.version == WHEEL, "the pinned Triton changed: go through tests/support/quirks.py"


def test_every_workaround_in_the_code_is_listed_and_the_test_of_its_fault_exists() -> None:
    number = re.compile(rf"Triton {VERSION[0]}\.{VERSION[1]}\b")
    files = [path for path in (HERE / "sm").rglob("*.py") if number.search(path.read_text())]
    modules = {".".join(path.relative_to(HERE).with_suffix("").parts) for path in files}
    assert modules == {module for _, module, _ in QUIRKS}
    assert [test for _, _, test in QUIRKS if not (HERE / "tests" / test).is_file()] == []
