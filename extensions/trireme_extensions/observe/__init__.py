"""What watches a box: the core serves the same without it."""
