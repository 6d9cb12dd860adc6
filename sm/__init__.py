"""Trireme: nginx, a Flask/gunicorn router with client plugins, and a local Triton in one box."""

__version__ = "0.1.0"
