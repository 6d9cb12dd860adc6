"""A real Triton is ready only after the warm-up of ``config.pbtxt`` has gone through the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tritons import MODELS, Model, prepare_triton

#: A call that takes a second, and leaves a note when it is done.
SLOW_CALL = """
open(self.folder + "/began", "w").close()
time.sleep(1)
open(self.folder + "/warm", "w").close()
return {"y": tensor(request, "x")}
"""
WARMUP = """
model_warmup { name: "zeros" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }
"""


@pytest.mark.parametrize("has_warmup", [True, False])
def test_triton_is_ready_only_after_a_models_warm_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_warmup: bool
) -> None:
    tensors = {"x": ("FP32", [-1])}
    monkeypatch.setitem(MODELS, "cold", Model(SLOW_CALL, tensors, {"y": ("FP32", [-1])}, max_batch_size=8))
    serving = prepare_triton(tmp_path, ["cold"])
    if has_warmup:
        with (serving.box.repository / "cold" / "config.pbtxt").open("a") as config:
            config.write(WARMUP)
    try:
        serving.start()
        assert (serving.notes / "warm").exists() is has_warmup
    finally:
        serving.stop()
