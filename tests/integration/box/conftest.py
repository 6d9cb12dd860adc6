"""The box that most tests share, and the demo models it serves."""

from tests.support.demo_box import box, cat, demo

__all__ = ["box", "cat", "demo"]
