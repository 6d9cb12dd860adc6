"""The Python models of a box, and which may answer in a call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sm.repository.ensembles import steps
from sm.repository.models import Model
from sm.run_state import Box

#: The class with which a Python model calls others (business logic scripting). It may call any.
CALL = "InferenceRequest"


class Reach(NamedTuple):
    """The models that may answer in a call of a model."""

    #: The names of the Python models.
    python: tuple[str, ...]
    #: The models that it consists of: itself, or an ensemble's steps in their order.
    parts: tuple[str, ...]
    #: True if one of the parts may answer after its execution has ended.
    is_decoupled: bool
    #: True if one of all keeps state between calls.
    has_state: bool
    #: The models that keep it.
    stateful: tuple[Model, ...] = ()


class PythonModels:
    """The Python models of a box's repository, as far as they were asked for."""

    def __init__(self, box: Box) -> None:
        self._box = box
        #: In multi-model mode another model may get a name, and this file is written then. A new version of a
        #: model has a name of its own.
        self._changes = box.models_file if box.multi_model else None
        self._known: tuple[float, dict[str, Reach]] = (0.0, {})

    def of(self, model: str) -> Reach:
        """Return what may answer in a call of ``model``."""
        changed, known = self._known
        if self._changes and (now := _modified(self._changes)) != changed:
            known = {}
            self._known = now, known
        reach = known.get(model)
        if reach is None:
            reach = self._reach(model)
            # A caller may send any name.
            if self._is_model(model):
                known[model] = reach
        return reach

    def _reach(self, model: str) -> Reach:
        reached = {each.name: each for each in self._reached(model)}
        python = tuple(name for name, each in reached.items() if each.backend == "python")
        parts = tuple(dict.fromkeys(_parts(model, reached)))
        configurations = (reached[name].config for name in parts)
        is_decoupled = any(config and config.model_transaction_policy.decoupled for config in configurations)
        stateful = tuple(each for each in reached.values() if each.has_state)
        return Reach(python, parts, is_decoupled, bool(stateful), stateful)

    def _reached(self, model: str) -> Iterator[Model]:
        """Yield each model that may answer in a call of ``model``."""
        seen: set[str] = set()
        waiting = [model]
        while waiting:
            name = waiting.pop()
            if name in seen or not self._is_model(name):
                continue
            seen.add(name)
            described = Model.read(self._box.served / name)
            yield described
            waiting += steps(described)
            if described.backend == "python" and _calls_others(described):
                waiting += self._box.served_names()

    def _is_model(self, name: str) -> bool:
        return "/" not in name and name not in ("", ".", "..") and (self._box.served / name).is_dir()


def _parts(model: str, reached: Mapping[str, Model], above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the Python models that ``model`` consists of. An ensemble may name itself."""
    described = reached.get(model)
    if described and described.backend == "python":
        yield model
    elif described and model not in above:
        for step in steps(described):
            yield from _parts(step, reached, (*above, model))


def _calls_others(model: Model) -> bool:
    try:
        return any(CALL in file.read_text(errors="replace") for file in model.folder.glob("*/**/*.py"))
    except FileNotFoundError:
        return True  # the files of a version that serves have been replaced: nobody knows what it calls


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
