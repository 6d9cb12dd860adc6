"""The Triton that most tests of this folder share."""

from tests.support.shared_triton import killable_triton, transport, triton

__all__ = ["killable_triton", "transport", "triton"]
