"""``sm`` as a person runs it."""

from tests.support.sm_command import sm

__all__ = ["sm"]
