"""The runtimes that :mod:`bench.runtimes` compares on processors, and the graphs that they need.

MNN is not part of the box: a way whose package is not there is left out, and said to be.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
from numpy.typing import NDArray

from sm.commands.build import masks
from sm.commands.build.onnx_graph import Graph
from sm.settings import HERE
from sm.triton.onnx_cpu.engines import OpenVino

Feed = Mapping[str, NDArray[Any]]
Run = Callable[[Feed], list[NDArray[Any]]]

#: Variants of the runner's settings, each with one change.
LEVELS = onnxruntime.GraphOptimizationLevel
ENTRIES: Mapping[str, Mapping[str, str]] = {
    "onnxruntime": {},
    "masks": {},
    "int8": {},
    "spinning": {"session.intra_op.allow_spinning": "1"},
    "denormals": {"session.set_denormal_as_zero": "1"},
    "unpacked": {"session.disable_prepacking": "1"},
}
LEVEL = {
    "basic": LEVELS.ORT_ENABLE_BASIC,
    "extended": LEVELS.ORT_ENABLE_EXTENDED,
    "saved": LEVELS.ORT_DISABLE_ALL,
}
ONNXRUNTIME = (*ENTRIES, *LEVEL, "no arena")
#: By the package that they need.
OTHERS = {"openvino": "openvino", "openvino-bf16": "openvino", "mnn": "MNN"}
WAYS = (*ONNXRUNTIME, *OTHERS)


def missing(way: str) -> str | None:
    """Return the package that a runtime needs and that is not installed."""
    package = OTHERS.get(way)
    return package if package and importlib.util.find_spec(package) is None else None


def graph(way: str, plain: Path, feeds: Sequence[Feed], folder: Path) -> Path | None:
    """Write the file that a way runs, from the ``plain`` graph; None if the way does not fit this model."""
    out = folder / f"{plain.parent.parent.name}-{way}.onnx"
    if way == "masks":
        if not (plain.parent / "tokenizer.json").is_file():
            return None
        description = HERE / "model" / plain.parent.parent.name / "preprocess.json"
        vocabulary = masks.Vocabulary.read(description, plain.with_name("tokenizer.json"))
        masks.add_mask_outputs(Graph.read(plain), vocabulary, out)
    elif way == "int8":
        _quantized(plain, feeds, out)
    elif way == "saved":
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(out)
        options.log_severity_level = 3
        onnxruntime.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"])
    elif way == "mnn":
        out = out.with_suffix(".mnn")
        tool = Path(sys.executable).with_name("mnnconvert")
        command: list[str | Path] = [
            tool,
            "-f",
            "ONNX",
            "--modelFile",
            plain,
            "--MNNModel",
            out,
            "--bizCode",
            "bench",
        ]
        subprocess.run(command, check=True, capture_output=True)
    else:
        out = plain
    return out


def runner(way: str, file: Path, names: tuple[Sequence[str], Sequence[str]], threads: int) -> Run:
    """``names``: of the inputs and outputs, in their order."""
    if way.startswith("openvino"):
        return _openvino(file, threads, "bf16" if way.endswith("bf16") else "fp32")
    return _mnn(file, names, threads) if way == "mnn" else _onnxruntime(way, file, threads)


def _onnxruntime(way: str, file: Path, threads: int) -> Run:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.enable_cpu_mem_arena = way != "no arena"
    options.graph_optimization_level = LEVEL.get(way, LEVELS.ORT_ENABLE_ALL)
    for key, value in {"session.intra_op.allow_spinning": "0", **ENTRIES.get(way, {})}.items():
        options.add_session_config_entry(key, value)
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda feed: list(session.run(None, dict(feed)))


def _openvino(file: Path, threads: int, precision: str) -> Run:
    engine = OpenVino(file, precision, threads)
    return lambda feed: engine.run(engine.outputs, feed)


def _mnn(file: Path, names: tuple[Sequence[str], Sequence[str]], threads: int) -> Run:
    from MNN import expr, nn

    settings = {"backend": "CPU", "numThread": threads, "precision": "high"}
    manager = nn.create_runtime_manager((settings,))
    module = nn.load_module_from_file(
        str(file), *map(list, names), runtime_manager=manager, shape_mutable=True
    )

    def run(feed: Feed) -> list[NDArray[Any]]:
        values = [(feed[name], feed[name].dtype.kind == "i") for name in names[0]]
        tensors = [
            expr.const(
                value.astype("int32") if is_integer else value,
                list(value.shape),
                expr.NCHW,
                expr.int if is_integer else expr.float,
            )
            for value, is_integer in values
        ]
        outputs = module.forward(tensors)
        return [
            expr.convert(output, expr.NCHW).read().copy()
            for output in (outputs if isinstance(outputs, list) else [outputs])
        ]

    return run


def _quantized(plain: Path, feeds: Sequence[Feed], out: Path) -> None:
    """Convolutions calibrated with the samples, 7 bits a weight as AVX2 wants; BERT's matrices as it runs."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Samples(CalibrationDataReader):  # type: ignore[misc]
        left = iter(feeds)

        def get_next(self) -> Any:
            return next(self.left, None)

    if "input_ids" in feeds[0]:
        quantize_dynamic(plain, out, ["MatMul"], per_channel=True, reduce_range=True)
        return
    prepared = out.with_suffix(".prepared.onnx")
    quant_pre_process(str(plain), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        prepared,
        out,
        Samples(),
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        reduce_range=True,
    )
