"""The name under which the tests of clients import :mod:`sm.plugins.golden`."""

from sm.plugins.golden import SCORE_TOLERANCE, TOLERANCE_PX, differences, short

__all__ = ["SCORE_TOLERANCE", "TOLERANCE_PX", "differences", "short"]
