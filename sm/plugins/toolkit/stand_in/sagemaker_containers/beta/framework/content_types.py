"""Names of content types."""

from sagemaker_inference.content_types import ANY, CSV, JSON, NPY, NPZ, OCTET_STREAM, UTF8_TYPES

__all__ = ["ANY", "CSV", "JSON", "NPY", "NPZ", "OCTET_STREAM", "UTF8_TYPES"]
