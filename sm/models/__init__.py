"""Models come and go while the box runs: multi-model mode, models on demand, new versions of a model."""
