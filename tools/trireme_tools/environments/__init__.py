"""``sm pack-env``: Python environments for models, as Triton's python backend needs them."""
