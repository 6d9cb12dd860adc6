"""``hf://owner/name`` is fetched from the hub, or a mirror, and served.

The hub is a stand-in, ``tests/integration/server/hub.py``; the library that speaks to it is the real one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sm.settings import HERE
from tests.integration.server.hub import LARGE, Hub, running_hub
from tests.support.tritons import MODELS


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub(tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        yield hub


def fetch(source: str, cache: Path) -> Any:
    """Return the result, or nothing. The library reads HF_ENDPOINT when it is imported."""
    command = [sys.executable, "-m", "sm.models.fetch.model_cache", source, str(cache)]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def test_a_triton_repository_is_fetched_as_it_is(hub: Hub, tmp_path: Path) -> None:
    model = tmp_path / "hub/team/models/echo"
    MODELS["echo"].write(model)
    result = fetch("hf://team/models@main", tmp_path / "cache")
    for file in filter(Path.is_file, model.rglob("*")):
        fetched = Path(result["repository"]) / "echo" / file.relative_to(model)
        assert fetched.read_bytes() == file.read_bytes()


def test_a_second_fetch_takes_only_what_has_changed(hub: Hub, tmp_path: Path) -> None:
    folder, cache = tmp_path / "hub/team/mood", tmp_path / "cache"
    files = {
        "model.onnx": b"1" * LARGE,
        **dict.fromkeys(("config.json", "tokenizer_config.json"), b"{}"),
        "pytorch_model.bin": b"not for a start",
    }
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    first = fetch("hf://team/mood", cache)
    assert first["bytes"] == LARGE + 2, "one content is fetched once"
    fetched = {
        path.name: path.read_bytes() for path in Path(first["repository"]).rglob("*") if path.is_file()
    }
    files.pop("pytorch_model.bin")
    assert fetched.items() >= files.items()
    assert "pytorch_model.bin" not in hub.sent
    assert fetch("hf://team/mood", cache) == {**first, "bytes": 0}
    (folder / "config.json").write_text('{"a": 1}')
    second = fetch("hf://team/mood", cache)
    assert second["bytes"] == len('{"a": 1}')
    assert (Path(second["repository"]) / "config.json").read_text() == '{"a": 1}'
    # The token goes to the hub, and not to the host that has the large files.
    assert "Bearer hf_secret" in hub.tokens["hub"]
    assert hub.tokens["other"] == {None}


@pytest.mark.parametrize("source", ["hf://team/none", "hf://team/mood@other"])
def test_what_the_hub_does_not_have_is_refused(source: str, hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "hub/team/mood").mkdir(parents=True)
    assert fetch(source, tmp_path / "cache") is None
