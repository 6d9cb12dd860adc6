"""The image, built once, and the container of it that most tests share."""

from tests.support.demo_box import cat, demo
from tests.support.image import image, shared_container, street

__all__ = ["cat", "demo", "image", "shared_container", "street"]
