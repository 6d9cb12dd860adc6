"""Training is not the box's part: scripts that can train as well import from here and call nothing of it."""

from __future__ import annotations

from typing import Any, NoReturn


def rabit_run(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError("the box serves and does not train: rabit_run is for training")
