"""Training is not the box's part: scripts that can train as well import this name."""
