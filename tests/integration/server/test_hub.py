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
from tests.support.box_fixture import Boxes
from tests.support.task_models import write_text_model
from tests.support.tritons import MODELS

LABELS = ("sad", "glad", "mad")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub(tmp_path / "hub") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        yield hub


def fetch(source: str, cache: Path) -> tuple[bool, Any]:
    """Return True and the result, or False and the sentence. The library reads HF_ENDPOINT when it is imported."""
    command = [sys.executable, "-m", "sm.models.fetch.model_cache", source, str(cache)]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    line = done.stdout.splitlines()[-1]
    return (True, json.loads(line)) if done.returncode == 0 else (False, line)


def test_a_folder_of_hugging_faces_form_is_served(boxes: Boxes, hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "hub/team/Mood-Small"
    write_text_model(folder, "text-classification", LABELS)
    (folder / "labels.txt").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"not for a start")
    (folder / "README.md").write_text("# Mood")
    variables: Any = {"HF_TASK": "text-classification", "TRIREME_CACHE": str(tmp_path / "cache")}
    with boxes.own(arguments="hf://team/Mood-Small", **variables) as box:
        answer = box.invoke("mood_small", {"text": "ada lives in paris ."}).json()["result"]
        assert {row["label"] for row in answer} == set(LABELS)
    assert "pytorch_model.bin" not in hub.sent


def test_a_triton_repository_is_fetched_as_it_is(hub: Hub, tmp_path: Path) -> None:
    model = tmp_path / "hub/team/models/echo"
    MODELS["echo"].write(model)
    (tmp_path / "hub/team/models/README.md").write_text("# Models")
    is_fetched, result = fetch("hf://team/models@main", tmp_path / "cache")
    assert is_fetched, result
    for file in filter(Path.is_file, model.rglob("*")):
        fetched = Path(result["repository"]) / "echo" / file.relative_to(model)
        assert fetched.read_bytes() == file.read_bytes()


def test_two_files_of_one_content_are_fetched_once_and_are_both_there(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "hub/team/twins"
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).write_text('{"same": true}')
    (folder / "model.onnx").write_bytes(b"1" * LARGE)
    is_fetched, result = fetch("hf://team/twins", tmp_path / "cache")
    assert is_fetched, result
    files = {path.name: path.read_text() for path in Path(result["repository"]).rglob("*.json")}
    names = ("config.json", "tokenizer_config.json", "special_tokens_map.json")
    assert files == dict.fromkeys(names, '{"same": true}')


def test_a_second_fetch_takes_only_what_has_changed(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "hub/team/mood"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"1" * LARGE)
    (folder / "config.json").write_text("{}")
    cache = tmp_path / "cache"
    _, first = fetch("hf://team/mood", cache)
    assert first["bytes"] == LARGE + 2
    assert (Path(first["repository"]) / "model.onnx").read_bytes() == b"1" * LARGE
    _, again = fetch("hf://team/mood", cache)
    assert again == {**first, "bytes": 0}
    (folder / "config.json").write_text('{"a": 1}')
    _, second = fetch("hf://team/mood", cache)
    assert second["bytes"] == len('{"a": 1}')
    assert (Path(second["repository"]) / "config.json").read_text() == '{"a": 1}'
    # The token goes to the hub, and not to the host that has the large files.
    assert "Bearer hf_secret" in hub.tokens["hub"]
    assert hub.tokens["other"] == {None}


@pytest.mark.parametrize("source", ["hf://team/none", "hf://team/mood@other"])
def test_what_the_hub_does_not_have_is_refused(source: str, hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "hub/team/mood").mkdir(parents=True)
    is_fetched, sentence = fetch(source, tmp_path / "cache")
    assert not is_fetched
    assert sentence.startswith(source)
