"""Client sources: find clients, load, check and reload them."""
