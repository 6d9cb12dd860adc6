"""Errors that a script raises or catches."""

from sagemaker_inference.errors import UnsupportedFormatError


class ClientError(Exception):
    """The script's own error. Its caller gets a 500."""


__all__ = ["ClientError", "UnsupportedFormatError"]
