"""A query with documents, and a folder of Hugging Face's form of a small cross-encoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.task_models import write_text_model
from trireme_extensions.tasks.hugging_face import read_folder

QUERY = "where does ada live ?"
#: The fifth is too long for the model, and the last is equal to the first.
DOCUMENTS = (
    "ada lives in paris .",
    "paris",
    "she ? she ? she ?",
    "Adas live . zoe",
    "ada lives in paris . " * 9 + "live",
    "ada lives in paris .",
)
#: Tokens that the model takes.
MAX_LENGTH = 24


def write_reranker(folder: Path, files: Mapping[str, Any] | None = None) -> Path:
    """Write a model with one label, and what ``sm new-model`` makes of its files; return the folder."""
    write_text_model(folder, "text-classification", ("relevant",))
    for name, content in (files or {}).items():
        (folder / name).write_text(json.dumps(content))
    read_folder(folder, "text-ranking" if files is None else "").write_files(folder)
    return folder
