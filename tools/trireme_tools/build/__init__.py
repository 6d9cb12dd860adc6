"""What a developer's machine adds to ``sm build-model``: exports from PyTorch."""
