"""Write client plugins to disk, and stand in for a Triton without models."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np

from sm.client.base import ModelMetadata
from sm.errors import UnknownModel

CLIENT_SOURCE = """
from sm.client.base import Client
from .words import WORD

class Hello(Client):
    def inference(self, payload):
        return WORD
"""


class EmptyTriton:
    """A Triton without models."""

    def infer(self, *_: Any, **__: Any) -> dict[str, np.ndarray[Any, Any]]:
        raise UnknownModel("no model")

    def stream(self, *_: Any, **__: Any) -> Generator[dict[str, np.ndarray[Any, Any]], None, None]:
        raise UnknownModel("no model")

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        raise UnknownModel(model)


def write_client(folder: Path, name: str, text: str = CLIENT_SOURCE, **modules: str) -> Path:
    client_folder = folder / name
    client_folder.mkdir(parents=True)
    (client_folder / "client.py").write_text(text)
    for module, content in modules.items():
        (client_folder / f"{module}.py").write_text(content)
    return client_folder
