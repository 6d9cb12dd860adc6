"""The parts of ``sm build-model`` for a person at a desk: exports, changes of a graph, calibration, int8."""
