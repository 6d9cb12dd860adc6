"""The standing attack: break a real box on purpose while checked callers use it, and report what they saw.

As tests in a bounded form (``pytest tests/e2e/faults``, part of ``make test-all``), and as a command in full:
``python -m tests.support.faults --help``. See docs/inside/standing-attack.md.
"""
