"""The Triton that most tests of this folder share, and a fake S3."""

from tests.support.s3 import aws
from tests.support.shared_triton import killable_triton, transport, triton

__all__ = ["aws", "killable_triton", "transport", "triton"]
