"""The boxes of the tests."""

from tests.support.box_fixture import boxes

__all__ = ["boxes"]
