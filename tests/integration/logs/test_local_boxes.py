"""``sm top``, ``sm logs --local`` and ``sm invoke`` find the box on this machine, and name it among several."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.boxes import CLIENT_FOLDERS, running_box
from tests.support.sm_command import RunSm
from tests.support.tritons import MODELS


def test_commands_find_the_local_box_and_name_it_among_several(
    tmp_path: Path, short_path: Path, sm: RunSm, monkeypatch: pytest.MonkeyPatch
) -> None:
    MODELS["echo"].write(tmp_path / "model" / "echo")
    monkeypatch.setenv("TMPDIR", str(short_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    folders = tmp_path / "first", tmp_path / "second"
    for folder in folders:
        folder.mkdir()
    clients = (CLIENT_FOLDERS / "platform",)
    with running_box(folders[0], tmp_path / "model", clients=clients, TMPDIR=str(short_path)) as first:
        found = sm("top", "--once")
        assert found.status == 0, found.err
        assert str(first.port) in found.out
        assert first.url.rpartition(":")[2] not in found.err
        (tmp_path / "request.json").write_text('{"modelname": "probe", "payload": {"numbers": [1]}}')
        monkeypatch.setenv("SAGEMAKER_BIND_TO_PORT", str(first.port))
        assert sm("invoke", "--json", str(tmp_path / "request.json")).status == 0
        monkeypatch.delenv("SAGEMAKER_BIND_TO_PORT")
        with running_box(folders[1], tmp_path / "model", clients=clients, TMPDIR=str(short_path)) as second:
            newest = (
                f"of the box at http://localhost:{second.port}; others run at http://localhost:{first.port}"
            )
            found = sm("top", "--once")
            assert newest in found.err
            assert str(second.port) in found.out
            second.invoke("probe", {"numbers": [1]})
            assert newest in sm("logs", "--local", "-n", "1").err
            monkeypatch.setenv("SAGEMAKER_BIND_TO_PORT", str(first.port))
            assert str(first.port) in sm("top", "--once").out
