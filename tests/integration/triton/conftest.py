"""The Triton that most of these tests share."""

from tests.support.shared_triton import mortal, transport, triton

__all__ = ["mortal", "transport", "triton"]
