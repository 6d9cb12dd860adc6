"""check-client finds the models that a client calls, under the client's name, an alias, or by parameter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from sm.client import TensorClient, TextPayload, Triton
from sm.plugins.loading import ClientSource
from sm.settings import Settings
from trireme_tools.check.discovery import choose_models


class WordsClient(TensorClient):
    """A client of one model with an alias."""

    name, model, aliases = "words", "words", ("words_small",)
    payload = TextPayload

    def preprocess(self, payload: TextPayload) -> Mapping[str, object]:  # type: ignore[override]
        return {}

    def postprocess(self, outputs: Mapping[str, object], payload: TextPayload) -> object:
        return None


@pytest.mark.parametrize(("model", "client"), [("words", ""), ("words_small", ""), ("anything", "words")])
def test_a_model_is_found_by_name_alias_or_parameter(tmp_path: Path, model: str, client: str) -> None:
    folder = tmp_path / "models"
    (folder / model / "1").mkdir(parents=True)
    (folder / model / "1" / "model.py").touch()
    parameter = f'parameters {{ key: "trireme_client" value {{ string_value: "{client}" }} }}'
    (folder / model / "config.pbtxt").write_text(f'backend: "python"\n{parameter if client else ""}\n')
    settings = Settings.read({"TRIREME_MODEL_REPOSITORY": str(folder), "TRIREME_CACHE": str(tmp_path / "c")})
    words = WordsClient(cast("Triton", None), tmp_path, folder)
    found = choose_models(ClientSource("words", tmp_path / "clients" / "words.py"), words, settings)
    assert (found, words.model) == (folder, model)
