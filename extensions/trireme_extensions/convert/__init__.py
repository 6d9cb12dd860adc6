"""``sm build-model``: change a graph, convert it for a target, compare its answers, and write the model."""
