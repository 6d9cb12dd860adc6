"""Environments of their own for Python models, as Triton's python backend wants them."""
