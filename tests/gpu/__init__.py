"""``python -m tests.gpu``: one command that shows what this box does on a machine with a GPU, and how fast."""
