"""A real Triton is ready only after the warm-up of ``config.pbtxt`` has gone through the model."""

from __future__ import annotations

from tests.support.tritons import TritonProcess


def test_triton_is_ready_only_after_a_models_warm_up(triton: TritonProcess) -> None:
    done, ready = triton.box.repository / "warm" / "1" / "model.py.done", triton.box.run / "ready"
    assert done.stat().st_mtime_ns <= ready.stat().st_mtime_ns
