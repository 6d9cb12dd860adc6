#!/usr/bin/env bash
# ONNX Runtime 1.31.1 gives the wrong sign of an int64 beyond 32 bits: Sign(2147483648) is -1.
# It matters because ONNX Runtime is the reference that other engines are compared with, and nothing is raised.
#
# Guess: Sign on int64 looks at all 64 bits, as numpy.sign and ONNX's reference evaluator do.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxruntime==1.31.1 onnx==1.23.2 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import sys
import numpy as np, onnx, onnxruntime
from onnx import parser
from onnx.reference import ReferenceEvaluator

graph = parser.parse_graph("g (int64[n] x) => (int64[n] y) { y = Sign(x) }")
model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
x = np.array([2**31 - 1, 2**31, 2**32, -7], np.int64)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
(found,), (right,) = session.run(None, {"x": x}), ReferenceEvaluator(model).run(None, {"x": x})
print("numbers            ", x.tolist())
print("ONNX Runtime", onnxruntime.__version__, found.tolist())
print("reference, numpy   ", right.tolist(), np.sign(x).tolist())
sys.exit(0 if found.tolist() == [1, -1, 1, -1] and right.tolist() == [1, 1, 1, -1] else 1)
PYTHON
