"""What a model repository holds, and what in it would stop a start; read without Triton, onnx or a GPU."""
