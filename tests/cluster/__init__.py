"""Boxes in a real cluster: no caller notices what happens to pods, nodes and processes."""
