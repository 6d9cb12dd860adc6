"""The calls of TensorRT's builder, recorded by a stand-in for its module: the real one needs a GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sm.errors import CommandError
from sm.repository import plans
from sm.repository.manifest import Profile
from sm.repository.plans import Plan

PROFILE = Profile(input="x", minimum=(1, 4), optimum=(4, 4), maximum=(8, 4))


class Recorder:
    """Records every call by its name, and returns the value in ``answers`` or another recorder."""

    def __init__(self, calls: list[tuple[str, tuple[Any, ...]]], **answers: Any) -> None:
        self.calls, self.answers = calls, answers

    def __getattr__(self, name: str) -> Any:
        if name == "num_errors":
            return self.answers.get(name, 0)

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append(
                (name, tuple(value for value in (*arguments, *named.values()) if not _is_fake(value)))
            )
            return self.answers.get(name, Recorder(self.calls, **self.answers))

        return call


def _is_fake(value: Any) -> bool:
    return isinstance(value, Recorder) or type(value).__name__ == "FileLogger"


def fake_tensorrt(calls: list[Any], **answers: Any) -> Any:
    answers = {"parse_from_file": True, "build_serialized_network": b"plan", "serialize": b"times", **answers}
    recorder = Recorder(calls, **answers)
    logger = type("ILogger", (), {"__init__": lambda self: None})
    return SimpleNamespace(
        __version__="10.13.3",
        ILogger=logger,
        Builder=lambda _: recorder,
        OnnxParser=lambda *_: recorder,
        NetworkDefinitionCreationFlag=SimpleNamespace(STRONGLY_TYPED=1),
        MemoryPoolType=SimpleNamespace(WORKSPACE="workspace"),
        init_libnvinfer_plugins=recorder.init_libnvinfer_plugins,
        BuilderFlag=SimpleNamespace(**({"FP16": "fp16"} if answers.get("weak", True) else {})),
    )


def plan(folder: Path, **changes: Any) -> Plan:
    fields = {"profiles": (PROFILE,), "precision": "fp16", **changes}
    return Plan("m", folder / "m.onnx", folder / "m.plan", folder / "log", **fields)


def test_standin_gets_the_builders_calls_in_order(tmp_path: Path) -> None:
    calls: list[Any] = []
    tiny_plan = plan(tmp_path, workspace=512, timing_cache=tmp_path / "times")
    assert plans.build_with_package(tiny_plan, fake_tensorrt(calls)) == "10.13.3"
    assert calls == [
        ("init_libnvinfer_plugins", ("",)),
        ("create_network", (2,)),
        ("parse_from_file", (str(tmp_path / "m.onnx"),)),
        ("create_builder_config", ()),
        ("set_memory_pool_limit", ("workspace", 512 * 2**20)),
        ("create_optimization_profile", ()),
        ("set_shape", ("x", (1, 4), (4, 4), (8, 4))),
        ("add_optimization_profile", ()),
        ("create_timing_cache", (b"",)),
        ("set_timing_cache", (False,)),
        ("build_serialized_network", ()),
        ("get_timing_cache", ()),
        ("serialize", ()),
    ]
    assert tiny_plan.file.read_bytes() == b"plan"
    assert (tmp_path / "times").read_bytes() == b"times"


def test_standin_weak_types_are_a_flag_of_tensorrt_10(tmp_path: Path) -> None:
    calls: list[Any] = []
    plans.build_with_package(plan(tmp_path, strongly_typed=False), fake_tensorrt(calls))
    assert ("create_network", (0,)) in calls
    assert ("set_flag", ("fp16",)) in calls


def test_standin_tensorrt_11_without_that_flag_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="picks no types itself: leave out --no-strongly-typed"):
        plans.build_with_package(plan(tmp_path, strongly_typed=False), fake_tensorrt([], weak=False))


def test_standin_a_graph_it_cannot_parse_is_a_sentence_with_its_reason(tmp_path: Path) -> None:
    error = SimpleNamespace(desc=lambda: "In node 3: INVALID_GRAPH")
    trt = fake_tensorrt([], parse_from_file=False, num_errors=1, get_error=error)
    with pytest.raises(CommandError, match="m: TensorRT built no plan: In node 3: INVALID_GRAPH"):
        plans.build_with_package(plan(tmp_path), trt)


def test_standin_no_gpu_is_a_sentence(tmp_path: Path) -> None:
    def fail_without_gpu(logger: Any) -> Any:
        logger.log(SimpleNamespace(name="WARNING"), "CUDA initialization failure with error: 100")
        raise TypeError("pybind11::init(): factory function returned nullptr")

    trt = fake_tensorrt([])
    trt.Builder = fail_without_gpu
    with pytest.raises(CommandError, match="there is no GPU that TensorRT can use"):
        plans.build_with_package(plan(tmp_path), trt)
