"""A box whose models and clients stream."""

from tests.support.streaming_box import box, repository, start

__all__ = ["box", "repository", "start"]
