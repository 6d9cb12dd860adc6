"""The image, built once, and the container of it that most tests share."""

from tests.support.image import cat, demo, image, shared, street

__all__ = ["cat", "demo", "image", "shared", "street"]
