"""The boxes of the tests, and ``sm`` as a person runs it."""

from tests.support.box_fixture import boxes
from tests.support.sm_command import sm

__all__ = ["boxes", "sm"]
