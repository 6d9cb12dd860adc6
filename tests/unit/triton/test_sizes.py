from __future__ import annotations

from sm.client.base import ModelMetadata, TensorMetadata
from sm.triton.inference_plan import MAX_OVERFLOWS, MAX_REQUEST_KINDS, OutputSizes


def metadata(batch: int, **outputs: tuple[str, tuple[int, ...]]) -> ModelMetadata:
    tensors = {name: TensorMetadata(name, datatype, shape) for name, (datatype, shape) in outputs.items()}
    return ModelMetadata("m", ("1",), batch, {}, tensors)


OPEN_OUTPUT = metadata(0, y=("FP32", (-1,)))


def test_after_overflows_a_prediction_gets_headroom_and_finally_none() -> None:
    sizes = OutputSizes()
    for _ in range(MAX_OVERFLOWS - 1):
        sizes.record_overflow("k")
        assert sizes.predict("k", OPEN_OUTPUT, 1) == {}
        sizes.learn("k", {"y": 100})
        assert sizes.predict("k", OPEN_OUTPUT, 1)["y"] > 100
    sizes.record_overflow("k")
    sizes.learn("k", {"y": 100})
    assert sizes.predict("k", OPEN_OUTPUT, 1) == {}


def test_the_oldest_request_kinds_are_forgotten() -> None:
    sizes = OutputSizes()
    for request_kind in range(MAX_REQUEST_KINDS + 1):
        sizes.learn(request_kind, {"y": 1})
    assert sizes.predict(0, OPEN_OUTPUT, 1) == {}
    assert sizes.predict(MAX_REQUEST_KINDS, OPEN_OUTPUT, 1) == {"y": 1}
