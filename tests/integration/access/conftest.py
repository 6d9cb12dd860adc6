"""A box with every lock on: TLS, API keys, rate limits, and CORS."""

from tests.integration.access.locked_boxes import locked

__all__ = ["locked"]
