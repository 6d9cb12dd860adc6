"""``sm build-model``, and the engines that run ONNX graphs on a CPU."""
