"""A client sees only the models of its archive, under their names in the archive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sm.client.base import ModelMetadata
from sm.errors import UnknownModel
from sm.multimodel.archive_clients import RenamedModels


class EchoingTriton:
    """Answers with the model and the options that it was called with."""

    def infer(self, model: str, inputs: Any, **options: Any) -> dict[str, Any]:
        return {"model": np.array([model]), **options}

    def stream(self, model: str, inputs: Any, **options: Any) -> Any:
        yield self.infer(model, inputs, **options)

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        return ModelMetadata(model, (version,), 0)


def test_model_names_are_translated_and_everything_else_is_passed_on() -> None:
    archive_models = RenamedModels(EchoingTriton(), {"resnet": "resnet-1"})
    answer: dict[str, Any] = archive_models.infer("resnet", {}, version="3", outputs=["y"])
    assert (answer["model"][0], answer["version"], answer["outputs"]) == ("resnet-1", "3", ["y"])
    assert next(archive_models.stream("resnet", {}))["model"][0] == "resnet-1"
    assert archive_models.metadata("resnet", "3") == ModelMetadata("resnet-1", ("3",), 0)


def test_a_model_outside_the_archive_is_unknown() -> None:
    archive_models = RenamedModels(EchoingTriton(), {"resnet": "resnet-1"})
    with pytest.raises(UnknownModel, match="no model 'resnet-1' in the archive, but resnet"):
        archive_models.metadata("resnet-1")
