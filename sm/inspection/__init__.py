"""Find what in a model repository would stop a start. Needs no running Triton, no onnx and no GPU."""
