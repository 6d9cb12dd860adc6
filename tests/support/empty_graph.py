"""The smallest ONNX graph."""

#: An ONNX file as short as can be: a graph with nothing in it.
EMPTY_GRAPH = bytes([7 << 3 | 2, 0])
