"""A fake AWS whose endpoints are real boxes."""

from tests.support.platform.teams import platform

__all__ = ["platform"]
