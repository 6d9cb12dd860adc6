"""The toolkit's logger. Its lines go where the box's go."""

from __future__ import annotations

import logging


def configure_logger() -> None:
    """Nothing is left to do: the box has set up the log."""


def get_logger() -> logging.Logger:
    return logging.getLogger("sagemaker-inference")
