"""The part of ``sm build-model`` that needs a developer's machine: exports from PyTorch."""
