"""``sm prepare``: fetch nginx, Triton and the weights, and build the demo's and the examples' models."""
