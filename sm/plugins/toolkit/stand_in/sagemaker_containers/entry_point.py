"""Scripts that can also train import this name; the box does not train."""
