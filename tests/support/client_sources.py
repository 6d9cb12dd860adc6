"""Files of client plugins."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np

from sm.client.base import ModelMetadata
from sm.errors import UnknownModel

CLIENT = """
from sm.client.base import Client
from .words import WORD

class Hello(Client):
    def inference(self, payload):
        return WORD
"""


class NothingServed:
    """The Triton of a box without a model: the clients here name none, or miss theirs."""

    def infer(self, *_: Any, **__: Any) -> dict[str, np.ndarray[Any, Any]]:
        raise UnknownModel("no model")

    def stream(self, *_: Any, **__: Any) -> Generator[dict[str, np.ndarray[Any, Any]], None, None]:
        raise UnknownModel("no model")

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        raise UnknownModel(model)


def write(folder: Path, name: str, text: str = CLIENT, **modules: str) -> Path:
    home = folder / name
    home.mkdir(parents=True)
    (home / "client.py").write_text(text)
    for module, content in modules.items():
        (home / f"{module}.py").write_text(content)
    return home
