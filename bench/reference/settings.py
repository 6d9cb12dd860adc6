"""The settings of the reference design, with their reasons."""

from __future__ import annotations

#: Threads of each of gunicorn's workers: most of a request's time it waits for Triton.
THREADS = 8
