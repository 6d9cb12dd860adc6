"""``sm logs``: the log of an endpoint, or of a box on this machine."""
