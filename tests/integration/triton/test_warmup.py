"""A real Triton is ready only after the warm-up of ``config.pbtxt`` has gone through the model."""

from __future__ import annotations

import numpy as np

from sm.triton.transport import Transport


def test_triton_is_ready_only_after_a_models_warm_up(transport: Transport) -> None:
    """Both models count their calls, and Triton was ready before the first of them."""
    cold, warm = (transport.infer(name, {"x": np.zeros(1, np.float32)})["y"] for name in ("cold", "warm"))
    assert warm == cold + 1
