#!/usr/bin/env bash
# OpenVINO 2026.4.1 answers NaN with ordinary numbers: Relu 0, a softmax 0 for the other classes, NaN >= 1 is true.
# It matters because a broken sensor or a missing value gets a plausible score instead of NaN, which callers check.
#
# Guess: NaN comes out as NaN (IEEE 754, ONNX's reference, ONNX Runtime), and a comparison with it is false.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q openvino==2026.4.1 onnxruntime==1.31.1 onnx==1.23.2
"$folder/venv/bin/python" - <<'PYTHON'
import sys
import numpy as np, onnx, onnxruntime, openvino
from onnx import parser

NAMES = ("relu", "softmax", "reached")
TEXT = """g (float[n,4] x) => (float[n,4] relu, float[n,4] softmax, bool[n,4] reached) <float[1] one = {1.0}> {
    relu = Relu(x) softmax = Softmax(x) reached = GreaterOrEqual(x, one)
}"""
model = onnx.helper.make_model(
    parser.parse_graph(TEXT), opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10
)
x = np.array([[np.nan, 0.5, 2, -1]], np.float32)
expected = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
core = openvino.Core()
compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
answer = compiled(x)
found = [np.asarray(answer[name]) for name in NAMES]
for name, one, other in zip(NAMES, expected, found, strict=True):
    print(f"{name}: ONNX Runtime {one.tolist()}, OpenVINO {openvino.__version__} {other.astype(one.dtype).tolist()}")
is_seen = np.isnan(expected[0][0, 0]) and found[0][0, 0] == 0 and found[1][0, 1:].tolist() == [0, 0, 0] and bool(found[2][0, 0])
sys.exit(0 if is_seen and not expected[2][0, 0] else 1)
PYTHON
