"""TensorRT plans: built from a graph, and built again for the GPU of this box."""
