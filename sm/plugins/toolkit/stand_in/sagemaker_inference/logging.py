"""The toolkit's logger; its lines go to the box's log."""

from __future__ import annotations

import logging


def configure_logger() -> None:
    """Do nothing: the box has configured logging."""


def get_logger() -> logging.Logger:
    return logging.getLogger("sagemaker-inference")
