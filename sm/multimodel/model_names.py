"""Give an archive's client a view of Triton with only its own models, under its own names."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from sm.client.base import Array, ModelMetadata, Tensors, Triton
from sm.errors import UnknownModel


class RenamedModels:
    """A :class:`~sm.client.base.Triton` for one client; ``names`` maps the client's names to Triton's."""

    def __init__(self, triton: Triton, names: Mapping[str, str]) -> None:
        self._triton, self._names = triton, names

    def infer(
        self, model: str, inputs: Tensors, *, version: str = "", outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        return self._triton.infer(self._name(model), inputs, version=version, outputs=outputs)

    def stream(
        self, model: str, inputs: Tensors, *, version: str = "", outputs: Sequence[str] | None = None
    ) -> Generator[dict[str, Array], None, None]:
        return self._triton.stream(self._name(model), inputs, version=version, outputs=outputs)

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        return self._triton.metadata(self._name(model), version)

    def _name(self, model: str) -> str:
        if model not in self._names:
            raise UnknownModel(f"there is no model {model!r} in the archive, but {', '.join(self._names)}")
        return self._names[model]
