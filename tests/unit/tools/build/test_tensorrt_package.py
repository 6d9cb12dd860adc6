"""What becomes of a build with the package TensorRT, played by a stand-in: the real one needs a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sm.errors import CommandError
from sm.repository.manifest import Profile
from trireme_extensions.convert.plans import TensorRTPlan, build_with_trtexec, find_builder
from trireme_tools.build.tensorrt_package import build_with_package

PROFILE = Profile(input="x", minimum=(1, 4), optimum=(4, 4), maximum=(8, 4))


class StandIn:
    """Returns from every call the value in ``answers`` or another stand-in."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        if name == "num_errors":
            return self.answers.get(name, 0)
        return lambda *_, **__: self.answers.get(name, StandIn(**self.answers))


def fake_tensorrt(weak: bool = True, builder: Any = None, **answers: Any) -> Any:
    answers = {"parse_from_file": True, "build_serialized_network": b"plan", "serialize": b"times", **answers}
    stand_in = StandIn(**answers)
    return SimpleNamespace(
        __version__="10.13.3",
        ILogger=type("ILogger", (), {"__init__": lambda self: None}),
        Builder=builder or (lambda _: stand_in),
        OnnxParser=lambda *_: stand_in,
        NetworkDefinitionCreationFlag=SimpleNamespace(STRONGLY_TYPED=1),
        MemoryPoolType=SimpleNamespace(WORKSPACE="workspace"),
        init_libnvinfer_plugins=stand_in.init_libnvinfer_plugins,
        BuilderFlag=SimpleNamespace(VERSION_COMPATIBLE="vc", **({"FP16": "fp16"} if weak else {})),
        HardwareCompatibilityLevel=SimpleNamespace(AMPERE_PLUS="from Ampere on"),
        config=stand_in,
    )


def plan(folder: Path, **changes: Any) -> TensorRTPlan:
    fields = {"profiles": (PROFILE,), "precision": "fp16", **changes}
    return TensorRTPlan("m", folder / "m.onnx", folder / "m.plan", folder / "log", **fields)


def test_standin_a_compatible_plan_is_asked_for_and_written_with_its_timing_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trt, flags = fake_tensorrt(), list[str]()
    trt.config.set_flag = flags.append
    trt.config.create_builder_config = lambda: trt.config
    options = {"version_compatible": True, "hardware_compatibility": "ampere+", "workspace": 512}
    compatible = plan(tmp_path, timing_cache=tmp_path / "times", **options)
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    assert build_with_package(compatible) == "10.13.3"
    assert (flags, trt.config.hardware_compatibility_level) == (["vc"], "from Ampere on")
    assert (compatible.file.read_bytes(), (tmp_path / "times").read_bytes()) == (b"plan", b"times")


def builder_without_gpu(logger: Any) -> Any:
    logger.log(SimpleNamespace(name="WARNING"), "CUDA initialization failure with error: 100")
    raise TypeError("pybind11::init(): factory function returned nullptr")


ERROR = SimpleNamespace(desc=lambda: "In node 3: INVALID_GRAPH")


@pytest.mark.parametrize(
    ("answers", "changes", "named"),
    [
        # TensorRT 11 has no weak types.
        ({"weak": False}, {"strongly_typed": False}, "--no-strongly-typed"),
        ({}, {"hardware_compatibility": "sameComputeCapability"}, "sameComputeCapability"),
        ({"parse_from_file": False, "num_errors": 1, "get_error": ERROR}, {}, ERROR.desc()),
        ({"builder": builder_without_gpu}, {}, "GPU"),
    ],
    ids=["weak types", "an older release's level", "a graph that cannot be parsed", "no GPU"],
)
def test_standin_a_plan_that_cannot_be_built_is_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: dict[str, Any],
    changes: dict[str, Any],
    named: str,
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", fake_tensorrt(**answers))
    with pytest.raises(CommandError, match=named):
        build_with_package(plan(tmp_path, **changes))


def test_the_package_builds_where_the_tools_are_too_and_else_trtexec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_builder() is build_with_trtexec
    (tmp_path / "tensorrt.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert find_builder() is build_with_package
    monkeypatch.setitem(sys.modules, "trireme_tools.build.tensorrt_package", None)
    assert find_builder() is build_with_trtexec
