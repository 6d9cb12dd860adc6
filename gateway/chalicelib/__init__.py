"""The gateway: an API with keys in front of a Triton on another machine."""
