"""The version is written only in ``sm/__init__.py``; everything else reads it."""

from __future__ import annotations

from sm import __version__
from sm.control.box_series import build_info
from sm.settings import HERE
from trireme_tools.prepare.servers import WHEEL


def test_the_metrics_report_the_version() -> None:
    (sample,) = build_info().samples
    assert (sample.name, sample.labels, sample.value) == ("trireme_build_info", {"version": __version__}, 1.0)


def test_the_triton_wheel_is_the_version_in_the_lock_file() -> None:
    assert f"\n{WHEEL.name}=={WHEEL.version} \\\n" in (HERE / "requirements.lock").read_text()
