"""The reference design that this box is measured against."""

#: Threads of each of gunicorn's workers: most of a request's time it waits for Triton.
THREADS = 8
