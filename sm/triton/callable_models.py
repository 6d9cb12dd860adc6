"""Which Python models may answer in a call of a model: it, an ensemble's steps, and those that it calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sm.repository.ensembles import steps
from sm.repository.models import Model
from sm.run_state import Box
from sm.triton.token_wrapper import WRAPPER

#: The class with which a Python model calls others (business logic scripting). It may call any.
CALL = "InferenceRequest"


class PythonModels:
    """The Python models of a box's repository, as far as they were asked for."""

    def __init__(self, box: Box) -> None:
        self._box = box
        #: In multi-model mode another model may get a name, and this file is written then.
        self._changes = box.models_file if box.multi_model else None
        self._known: tuple[float, dict[str, tuple[str, ...]]] = (0.0, {})

    def reached_by(self, model: str) -> tuple[str, ...]:
        """Return the names of the Python models that may answer in a call of ``model``."""
        changed, known = self._known
        if self._changes and (now := _modified(self._changes)) != changed:
            known = {}
            self._known = now, known
        reached = known.get(model)
        if reached is None:
            reached = self._read(model)
            # A caller may send any name.
            if reached or self._is_model(model):
                known[model] = reached
        return reached

    def parts_of(self, model: str) -> tuple[str, ...]:
        """Return the Python models that ``model`` consists of: it, or an ensemble's steps in their order."""
        if not self._is_model(model):
            return ()
        described = Model.read(self._box.served / model)
        if described.backend == "python":
            return (model,)
        parts = (part for step in steps(described) for part in self.parts_of(step))
        return tuple(dict.fromkeys(parts))

    def is_decoupled(self, model: str) -> bool:
        """True if a model may answer after its execution has ended."""
        config = Model.read(self._box.served / model).config
        return config is not None and bool(config.model_transaction_policy.decoupled)

    def has_state(self, model: str) -> bool:
        """True if a model that may answer in a call of ``model`` keeps state between calls."""
        configurations = (described.config for described in self._reached(model))
        return any(config and config.HasField("sequence_batching") for config in configurations)

    def _read(self, model: str) -> tuple[str, ...]:
        return tuple(described.name for described in self._reached(model) if described.backend == "python")

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


def _calls_others(model: Model) -> bool:
    return any(
        CALL in file.read_text(errors="replace")
        for file in model.folder.glob("*/**/*.py")
        if file.resolve() != WRAPPER
    )


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
