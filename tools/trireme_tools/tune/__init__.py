"""``sm tune``: find a model's best instance count and dynamic batching by measuring them on this machine."""
