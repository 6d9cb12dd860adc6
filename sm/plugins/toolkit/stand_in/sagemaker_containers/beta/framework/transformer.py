"""A script's functions are called by the box itself: scripts import this name and call nothing of it."""
