"""Requests, archives and scripts of the reference systems, unchanged."""
