"""A real Triton is ready only after the warm-up of ``config.pbtxt`` has gone through the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tritons import MODELS, Model, prepare_triton

#: What a first call costs.
SLOW = """
open(self.folder + "/began", "w").close()
time.sleep(1)
open(self.folder + "/warm", "w").close()
return {"y": tensor(request, "x")}
"""
WARMUP = """
model_warmup { name: "zeros" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }
"""


@pytest.mark.parametrize("warmed", [True, False])
def test_ready_is_after_the_first_slow_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warmed: bool
) -> None:
    tensors = {"x": ("FP32", [-1])}
    monkeypatch.setitem(MODELS, "cold", Model(SLOW, tensors, {"y": ("FP32", [-1])}, batch=8))
    serving = prepare_triton(tmp_path, ["cold"])
    if warmed:
        with (serving.box.repository / "cold" / "config.pbtxt").open("a") as config:
            config.write(WARMUP)
    try:
        serving.start()
        assert (serving.notes / "warm").exists() is warmed
    finally:
        serving.stop()
