"""Build a plan with TensorRT's Python API. The package is an argument, so nothing here imports it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

from sm.errors import StartError
from sm.tensorrt.plans import Plan, explain_failure

MIB = 2**20


def build(plan: Plan, trt: Any) -> str:
    """Build a plan, and write TensorRT's messages into ``plan.log``.

    Args:
        plan: The plan.
        trt: The package ``tensorrt``.

    Returns:
        TensorRT's version.

    Raises:
        StartError: There is no plan; the sentence says why.
    """
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


def _serialize_plan(plan: Plan, trt: Any, log: TextIO) -> Any:
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


def _configure(plan: Plan, trt: Any, builder: Any, config: Any) -> None:
    if plan.workspace:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, plan.workspace * MIB)
    if plan.profiles:
        profile = builder.create_optimization_profile()
        for bounds in plan.profiles:
            profile.set_shape(bounds.input, bounds.minimum, bounds.optimum, bounds.maximum)
        config.add_optimization_profile(profile)
    if plan.timing_cache:
        cache = config.create_timing_cache(_read_if_there(plan.timing_cache))
        config.set_timing_cache(cache, ignore_mismatch=False)
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


def _read_if_there(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
