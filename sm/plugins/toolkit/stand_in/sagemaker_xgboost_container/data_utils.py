"""Training is not the box's part: scripts that can train as well import from here and call nothing of it."""

from __future__ import annotations

from typing import Any, NoReturn


def get_dmatrix(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError("the box serves and does not train: get_dmatrix is for training")
