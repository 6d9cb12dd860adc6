"""The recording Triton times streams and replays them like any call."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from sm.client.base import Array, ModelMetadata
from trireme_tools.check.recording_triton import RecordingTriton


class CountingTriton:
    """A Triton whose model counts to two; counts its calls."""

    calls = 0

    def infer(self, model: str, inputs: Mapping[str, Array], **_: Any) -> dict[str, Array]:
        return next(self.stream())

    def stream(self, *_: Any, **__: Any) -> Generator[dict[str, Array], None, None]:
        self.calls += 1
        for number in (1, 2):
            yield {"y": np.array([number])}

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        return ModelMetadata(model, ("1",), 0)


def test_a_stream_with_the_same_inputs_is_replayed_and_a_call_recorded_separately() -> None:
    recording = RecordingTriton(triton := CountingTriton())
    recording.replaying = True
    for x in (7, 7, 8):
        answers = recording.stream("counts", {"x": np.array([x])})
        assert [int(answer["y"][0]) for answer in answers] == [1, 2]
    assert triton.calls == 2
    assert recording.infer("counts", {"x": np.array([7])}) == {"y": np.array([1])}
