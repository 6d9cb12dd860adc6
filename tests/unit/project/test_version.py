"""The version is written only in ``sm/__init__.py``; everything else reads it."""

from __future__ import annotations

from sm.settings import HERE
from trireme_tools.prepare.servers import WHEEL


def test_the_triton_wheel_is_the_version_in_the_lock_file() -> None:
    assert f"\n{WHEEL.name}=={WHEEL.version} \\\n" in (HERE / "requirements.lock").read_text()
