from __future__ import annotations

from sm.client.base import ModelMetadata, TensorMetadata
from sm.triton.output_sizes import MAX_OVERFLOWS, MAX_REQUEST_KINDS, OutputSizes


def metadata(batch: int, **outputs: tuple[str, tuple[int, ...]]) -> ModelMetadata:
    described = {name: TensorMetadata(name, kind, shape) for name, (kind, shape) in outputs.items()}
    return ModelMetadata("m", ("1",), batch, {}, described)


OPEN = metadata(0, y=("FP32", (-1,)))


def test_fixed_outputs_are_known_and_grow_with_the_batch() -> None:
    model = metadata(8, a=("FP32", (10,)), b=("BYTES", (1,)), c=("INT64", (-1,)))
    assert OutputSizes().predict("k", model, 3) == {"a": 120}
    assert OutputSizes().predict("k", metadata(0, a=("FP32", (10,))), 3) == {"a": 40}


def test_an_open_output_is_expected_as_large_as_it_was() -> None:
    sizes = OutputSizes()
    assert sizes.predict("k", OPEN, 1) == {}
    sizes.learn("k", {"y": 100})
    sizes.learn("k", {"y": 60})
    assert sizes.predict("k", OPEN, 1) == {"y": 100}
    assert sizes.predict("other", OPEN, 1) == {}


def test_one_that_outgrew_its_place_gets_headroom_and_then_none() -> None:
    sizes = OutputSizes()
    for _ in range(MAX_OVERFLOWS - 1):
        sizes.record_overflow("k")
        assert sizes.predict("k", OPEN, 1) == {}
        sizes.learn("k", {"y": 100})
        assert sizes.predict("k", OPEN, 1)["y"] > 100
    sizes.record_overflow("k")
    sizes.learn("k", {"y": 100})
    assert sizes.predict("k", OPEN, 1) == {}


def test_the_oldest_are_forgotten() -> None:
    sizes = OutputSizes()
    for number in range(MAX_REQUEST_KINDS + 1):
        sizes.learn(number, {"y": 1})
    assert sizes.predict(0, OPEN, 1) == {}
    assert sizes.predict(MAX_REQUEST_KINDS, OPEN, 1) == {"y": 1}
