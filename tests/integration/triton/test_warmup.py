"""A real Triton is ready only after the warm-up of ``config.pbtxt`` has gone through the model."""

from __future__ import annotations

from pathlib import Path

from tests.support.tritons import Model, prepare_triton

#: A call that takes a second, and leaves a note when it is done.
SLOW_CALL = """
time.sleep(1)
open(self.folder + "/{note}", "w").close()
return {{"y": tensor(request, "x")}}
"""
WARMUP = """
model_warmup { name: "zeros" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }
"""


def test_triton_is_ready_only_after_a_models_warm_up(tmp_path: Path) -> None:
    serving = prepare_triton(tmp_path, [])
    for name in ("warm", "cold"):
        model = Model(SLOW_CALL.format(note=name), {"x": ("FP32", [-1])}, {"y": ("FP32", [-1])}, 8)
        model.write(serving.box.repository / name)
    with (serving.box.repository / "warm" / "config.pbtxt").open("a") as config:
        config.write(WARMUP)
    try:
        serving.start()
        assert [note.name for note in serving.notes.iterdir()] == ["warm"]
    finally:
        serving.stop()
