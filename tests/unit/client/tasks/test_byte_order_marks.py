"""Files of a team may begin with a byte order mark, as editors of Windows write it."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import pytest

from sm.client.base import TensorClient
from tests.support.task_models import load_task, write_text_model


def load(folder: Path) -> TensorClient:
    write_text_model(folder, "text-classification", ("sad", "glad"))
    (folder / "labels.txt").write_text("sad\nglad\n")
    return load_task(folder, task="text-classification", max_length=8)


@pytest.mark.parametrize("name", ["labels.txt", "tokenizer.json", "task.json"])
def test_a_file_with_a_byte_order_mark_is_read_as_without(tmp_path: Path, name: str) -> None:
    client = load(tmp_path / "mood")
    plain: Any = client.inference(client.payload.model_validate({"text": "ada lives"}))
    file = tmp_path / "mood" / name
    file.write_bytes(BOM_UTF8 + file.read_bytes())
    client.setup()
    assert client.inference(client.payload.model_validate({"text": "ada lives"})) == plain
    assert {row["label"] for row in plain} == {"sad", "glad"}
