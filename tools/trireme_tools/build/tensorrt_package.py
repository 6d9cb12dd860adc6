"""Build a TensorRT plan with the Python package ``tensorrt``: on a machine with a GPU that has no trtexec."""

from __future__ import annotations

import importlib
from typing import Any, TextIO

from sm.errors import StartError
from trireme_extensions.convert.plans import LEVELS, TensorRTPlan, explain_failure

MIB = 2**20


def build_with_package(plan: TensorRTPlan) -> str:
    """Build a plan, and write TensorRT's messages into ``plan.log``.

    Returns:
        TensorRT's version.

    Raises:
        StartError: There is no plan; the sentence says why.
    """
    trt: Any = importlib.import_module("tensorrt")
    with plan.log.open("w") as log:
        try:
            serialized = _serialize_plan(plan, trt, log)
        except StartError:
            raise
        except Exception as error:  # TensorRT raises its own; without a GPU, Builder raises TypeError.
            serialized = None
            print(f"[ERROR] {error}", file=log)
    if serialized is None:
        raise explain_failure(plan, plan.log.read_text(errors="replace"), "TensorRT built no plan")
    plan.file.write_bytes(serialized)
    return str(trt.__version__)


def _serialize_plan(plan: TensorRTPlan, trt: Any, log: TextIO) -> Any:
    logger = _logger(trt, log)
    trt.init_libnvinfer_plugins(logger, "")  # The parser finds operators there that ONNX lacks.
    builder = trt.Builder(logger)
    # TensorRT 11 always does this and ignores the flag.
    flag = trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
    network = builder.create_network(1 << int(flag) if plan.strongly_typed else 0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(plan.graph)):
        for number in range(parser.num_errors):
            print(f"[ERROR] {parser.get_error(number).desc()}", file=log)
        return None
    config = builder.create_builder_config()
    _configure(plan, trt, builder, config)
    serialized = builder.build_serialized_network(network, config)
    if serialized is not None and plan.timing_cache:
        plan.timing_cache.write_bytes(config.get_timing_cache().serialize())
    return serialized


def _configure(plan: TensorRTPlan, trt: Any, builder: Any, config: Any) -> None:
    if plan.workspace:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, plan.workspace * MIB)
    if plan.profiles:
        profile = builder.create_optimization_profile()
        for bounds in plan.profiles:
            profile.set_shape(bounds.input, bounds.minimum, bounds.optimum, bounds.maximum)
        config.add_optimization_profile(profile)
    if plan.timing_cache:
        measured = plan.timing_cache.read_bytes() if plan.timing_cache.is_file() else b""
        cache = config.create_timing_cache(measured)
        config.set_timing_cache(cache, ignore_mismatch=False)
    if plan.version_compatible:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    if name := LEVELS.get(plan.hardware_compatibility):
        level = getattr(trt.HardwareCompatibilityLevel, name, None)
        if level is None:
            raise StartError(
                f"TensorRT {trt.__version__} does not know --hardware-compatibility "
                f"{plan.hardware_compatibility}: leave it out, or build with a newer one."
            )
        config.hardware_compatibility_level = level
    if not plan.strongly_typed and plan.precision != "fp32":
        flag = getattr(trt.BuilderFlag, plan.precision.upper(), None)
        if flag is None:
            raise StartError(
                f"TensorRT {trt.__version__} picks no types itself: leave out --no-strongly-typed."
            )
        config.set_flag(flag)


def _logger(trt: Any, log: TextIO) -> Any:
    class FileLogger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            print(f"[{severity.name}] {message}", file=log)

    return FileLogger()
