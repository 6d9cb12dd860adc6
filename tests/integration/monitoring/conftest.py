"""The demo models that the watched box serves."""

from tests.support.demo_box import cat, demo

__all__ = ["cat", "demo"]
