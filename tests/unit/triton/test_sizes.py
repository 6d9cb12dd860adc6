"""The sizes of outputs are learnt from earlier answers to the same kind of request."""

from __future__ import annotations

import time

import numpy as np
import pytest

from sm.client.base import ModelMetadata, TensorMetadata
from sm.invocation import Invocation
from sm.triton.inference_plan import MAX_OVERFLOWS, InferencePlan, OutputSizes, Plans

OPEN_OUTPUT = ModelMetadata("m", ("1",), 0, {}, {"y": TensorMetadata("y", "FP32", (-1,))})


def test_after_overflows_a_prediction_gets_headroom_and_finally_none() -> None:
    sizes = OutputSizes()
    for _ in range(MAX_OVERFLOWS - 1):
        sizes.record_overflow()
        assert sizes.predict(OPEN_OUTPUT, 1) == {}
        sizes.learn({"y": 100})
        assert sizes.predict(OPEN_OUTPUT, 1)["y"] > 100
    sizes.record_overflow()
    sizes.learn({"y": 100})
    assert sizes.predict(OPEN_OUTPUT, 1) == {}


@pytest.mark.parametrize("reason", ["the client", "the model"])
def test_outputs_of_what_may_not_run_twice_have_no_room_to_outgrow(reason: str) -> None:
    plans = Plans(lambda _: reason == "the model")
    invocation = Invocation(time.monotonic() + 10)
    invocation.repeatable = reason != "the client"
    fixed = ModelMetadata("m", ("1",), 0, {}, {"y": TensorMetadata("y", "FP32", (4,))})

    def plan(invocation: Invocation | None) -> InferencePlan:
        return plans.make(fixed, "", {"x": np.zeros(4, np.float32)}, None, invocation=invocation)

    first = plan(invocation)
    assert not first.outputs
    first.output_sizes.learn({"y": 100})
    assert not plan(invocation).outputs
    if reason == "the client":
        assert plan(None).outputs
