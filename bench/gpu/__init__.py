"""``python -m bench.gpu``: checks this box on a machine with a GPU, and measures its speed."""
