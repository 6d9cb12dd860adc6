"""``sm new-model`` writes a served model from files of Hugging Face's form, and no client file.

Public weights cannot be fetched here: the graphs are small ones with fixed weights, the files are of the
exact form.
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from sm.errors import CommandError
from sm.plugins.sources import ClientSource, discover, discover_in_models
from tests.support.task_models import new_model, write_text_model
from trireme_tools.scaffold.arguments import add_eject_arguments
from trireme_tools.scaffold.new_model import eject

LABELS = ("sad", "glad", "mad")
new_mood = functools.partial(new_model, "mood")


def edit(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**content, **changes}))


def task_of(model: Path) -> Any:
    return json.loads((model / "task.json").read_text())


def golden_answer(model: Path) -> Any:
    return json.loads((model / "sample" / "golden.json").read_text())


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A text classifier as ``save_pretrained()`` and optimum write it."""
    folder = tmp_path / "checkpoint"
    write_text_model(folder, "text-classification", LABELS)
    (folder / "labels.txt").unlink()
    (folder / "onnx").mkdir()
    (folder / "model.onnx").rename(folder / "onnx" / "model.onnx")
    edit(folder / "config.json", architectures=["BertForSequenceClassification"], max_position_embeddings=64)
    edit(folder / "tokenizer_config.json", model_max_length=10**30)
    return folder


def test_a_folder_becomes_a_served_model_with_labels_tokenizer_and_golden_answer(
    tmp_path: Path, checkpoint: Path
) -> None:
    model = new_mood(tmp_path, checkpoint)
    assert task_of(model) == {"task": "text-classification", "max_length": 64}
    assert (model / "labels.txt").read_text().split() == list(LABELS)
    assert {row["label"] for row in golden_answer(model)} == set(LABELS)
    assert list(discover_in_models(tmp_path / "model", ())) == [
        ClientSource("mood", model / "task.json", "task")
    ]
    assert not (tmp_path / "clients").exists()


def test_eject_writes_the_client_that_serves_it_then(tmp_path: Path, checkpoint: Path) -> None:
    new_mood(tmp_path, checkpoint)
    parser = argparse.ArgumentParser()
    add_eject_arguments(parser)
    eject(parser.parse_args(["mood", "--into", str(tmp_path)]))
    sources = list(discover((tmp_path / "clients",)))
    assert [source.name for source in sources] == ["mood"]
    assert not list(discover_in_models(tmp_path / "model", sources))
    assert "class Mood(TextClassification):" in sources[0].file.read_text()
    with pytest.raises(CommandError, match="mood"):
        eject(parser.parse_args(["mood", "--into", str(tmp_path)]))


@pytest.mark.parametrize(
    ("source", "config", "options", "named"),
    [
        ("onnx/model.onnx", {}, (), "--task"),
        ("onnx/model.onnx", {}, ("--task", "image-classification"), "--preprocess"),
        ("onnx/model.onnx", {}, ("--task", "text-classification"), "tokenizer.json"),
        (".", {"architectures": ["MysteryNet"]}, (), "MysteryNet"),
        (".", {"id2label": {"0": "sad", "1": "glad"}}, (), "labels"),
        (".", {}, ("--task", "question-answering"), "start_logits"),
    ],
)
def test_what_the_files_do_not_say_is_asked_for_by_its_option_and_nothing_is_left_behind(
    tmp_path: Path, checkpoint: Path, source: str, config: Any, options: tuple[str, ...], named: str
) -> None:
    edit(checkpoint / "config.json", **config)
    with pytest.raises(CommandError, match=named):
        new_mood(tmp_path, checkpoint / source, *options)
    assert not list((tmp_path / "model").glob("*"))


def test_a_tokenizer_that_needs_code_is_refused(tmp_path: Path, checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    edit(checkpoint / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Tokenizer", None]})
    (checkpoint / "own.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(CommandError):
        new_mood(tmp_path, checkpoint)
