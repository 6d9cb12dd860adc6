"""``sm push`` follows a canary on a terminal until it ends, or until its user leaves it."""

from __future__ import annotations

import argparse
import io
from unittest.mock import Mock

import pytest

from trireme_tools.invoke import push

VERSION = {"requests": 41, "errors": 2, "error_rate": 0.05, "p50_ms": 1.5, "p99_ms": 9.5}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("ends", [True, False])
def test_a_terminal_shows_both_versions_until_the_end(monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    canary = {"version_id": "new", "percent": 10, "auto": False, "verdict": "waiting", "reason": "few"}
    versions = {"stable": VERSION, "canary": {**VERSION, "requests": 17}}
    answers = [*[{"version_id": "old", "canary": canary | versions}] * 2, {"version_id": "new"}]
    call = Mock(side_effect=answers)
    monkeypatch.setattr(push.PushedModel, "call", call)
    pauses = [None, None] if ends else [None, KeyboardInterrupt]
    monkeypatch.setattr("trireme_tools.invoke.push.time.sleep", Mock(side_effect=pauses))
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    options = argparse.Namespace(model="cats", to="http://box", api_key=None, auto=False)
    assert push.follow(push.PushedModel("http://box", "cats", "key"), options) == 0
    shown = terminal.getvalue()
    assert all(word in shown for word in ("requests", "p50", "p99", "41", "17"))
    assert ("--promote" in shown) is not ends
    assert [each.args[0] for each in call.call_args_list] == ["GET"] * (3 if ends else 2)
