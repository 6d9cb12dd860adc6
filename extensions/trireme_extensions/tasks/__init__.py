"""Models without code: ``task.json``, Hugging Face's form, and checkpoints."""
