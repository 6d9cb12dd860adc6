"""A fake AWS whose endpoints are real boxes."""

from tests.support.platform.fixtures import platform

__all__ = ["platform"]
