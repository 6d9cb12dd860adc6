"""One environment for all of these tests: making it takes seconds."""

from tests.support.packed_environments import made

__all__ = ["made"]
