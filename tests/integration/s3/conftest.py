"""A fake S3 with one bucket of inputs and one of results."""

from tests.support.s3 import aws

__all__ = ["aws"]
