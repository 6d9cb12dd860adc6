"""Modules are imported by the box itself: scripts import this name and call nothing of it."""
