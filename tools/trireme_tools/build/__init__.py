"""The part of ``sm build-model`` that needs a developer's machine: PyTorch's exports, labels of boxes."""
