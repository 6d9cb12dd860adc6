"""What check-client needs of a client: its model, Triton's answers once, and memory that does not grow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import numpy as np
import pytest

from sm.client import TensorClient, TextPayload, Triton
from sm.client.base import ModelMetadata
from sm.plugins.sources import ClientSource
from sm.settings import Settings
from trireme_tools.check.client_checks import WARM_UP_CALLS, find_leak
from trireme_tools.check.discovery import choose_models
from trireme_tools.check.recording_triton import RecordingTriton


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


def test_a_stream_with_the_same_inputs_is_replayed_and_a_call_recorded_separately() -> None:
    answer = [{"y": np.array([1])}, {"y": np.array([2])}]
    triton = Mock(stream=Mock(side_effect=lambda *_, **__: iter(answer)), infer=Mock(return_value=answer[0]))
    triton.metadata.return_value = ModelMetadata("counts", ("1",), 0)
    recording = RecordingTriton(triton)
    recording.replaying = True
    for x in (7, 7, 8):
        assert list(recording.stream("counts", {"x": np.array([x])})) == answer
    assert triton.stream.call_count == 2
    assert recording.infer("counts", {"x": np.array([7])}) == {"y": np.array([1])}


# tests/integration/check/test_check_client.py has a client that leaks.
def test_a_cache_with_a_few_keys_is_no_leak() -> None:
    kept: dict[int, list[int]] = {}
    folder, calls = Path(__file__).parent, WARM_UP_CALLS + 100
    assert find_leak(lambda number: kept.setdefault(number % 7, [number] * 1000), calls, folder) is None
