"""``sm top``, ``sm logs --local`` and ``sm invoke`` find the box on this machine, and name it among several."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.box_fixture import Boxes
from tests.support.sm_command import RunSm


def test_commands_find_the_local_box_and_name_it_among_several(
    boxes: Boxes, tmp_path: Path, short_path: Path, sm: RunSm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(short_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with boxes.own(("echo",), ("platform",), TMPDIR=str(short_path)) as first:
        found = sm("top", "--once")
        assert (found.status, str(first.port) in found.out, str(first.port) in found.err) == (0, True, False)
        (tmp_path / "request.json").write_text('{"modelname": "probe", "payload": {"numbers": [1]}}')
        monkeypatch.setenv("SAGEMAKER_BIND_TO_PORT", str(first.port))
        assert sm("invoke", "--json", str(tmp_path / "request.json")).status == 0
        monkeypatch.delenv("SAGEMAKER_BIND_TO_PORT")
        with boxes.own(("echo",), ("platform",), TMPDIR=str(short_path)) as second:
            found = sm("top", "--once")
            assert str(second.port) in found.out
            second.invoke("probe", {"numbers": [1]})
            for said in (found.err, sm("logs", "--local", "-n", "1").err):
                # The newest is taken, and the others are named.
                assert said.index(str(second.port)) < said.index(str(first.port))
            monkeypatch.setenv("SAGEMAKER_BIND_TO_PORT", str(first.port))
            assert str(first.port) in sm("top", "--once").out
