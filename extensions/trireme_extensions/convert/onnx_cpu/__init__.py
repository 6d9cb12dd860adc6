"""The model that runs ONNX graphs in Triton's python backend; copied into a repository, never imported."""
