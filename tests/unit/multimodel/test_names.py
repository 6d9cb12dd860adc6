"""A client sees its archive's models, under the names it knows, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sm.client.base import ModelMetadata
from sm.errors import UnknownModel
from sm.multimodel.model_names import RenamedModels


class Asked:
    """Notes whom it is asked for; Triton itself is not under test."""

    def infer(self, model: str, inputs: Any, **options: Any) -> dict[str, Any]:
        return {"model": np.array([model]), **options}

    def stream(self, model: str, inputs: Any, **options: Any) -> Any:
        yield self.infer(model, inputs, **options)

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        return ModelMetadata(model, (version,), 0)


def test_names_are_tritons_and_everything_else_is_handed_on() -> None:
    named = RenamedModels(Asked(), {"resnet": "resnet-1"})
    said: dict[str, Any] = named.infer("resnet", {}, version="3", outputs=["y"])
    assert (said["model"][0], said["version"], said["outputs"]) == ("resnet-1", "3", ["y"])
    assert next(named.stream("resnet", {}))["model"][0] == "resnet-1"
    assert named.metadata("resnet", "3") == ModelMetadata("resnet-1", ("3",), 0)


def test_another_archives_model_is_not_there() -> None:
    named = RenamedModels(Asked(), {"resnet": "resnet-1"})
    with pytest.raises(UnknownModel, match="no model 'resnet-1' in the archive, but resnet"):
        named.metadata("resnet-1")
