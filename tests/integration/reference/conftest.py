"""A box that the tests of the official Triton container share, with its settings."""

from __future__ import annotations

import pytest

from tests.support.box_fixture import Boxes
from tests.support.demo_box import demo
from tests.support.multi_model_endpoint import MultiModelEndpoint, shared_endpoint

__all__ = ["demo"]

#: Opens the restricted API to the header below, both with the values of Triton's documentation.
RESTRICTED = "--http-restricted-api=model-repository:admin-key=admin-value"
ADMIN = {"admin-key": "admin-value"}


@pytest.fixture
def multi_model(boxes: Boxes) -> MultiModelEndpoint:
    """A box in multi-model mode whose model routes need a key."""
    endpoint = shared_endpoint(
        boxes, SAGEMAKER_TRITON_ADDITIONAL_ARGS=RESTRICTED, SAGEMAKER_MODEL_SERVER_WORKERS="1"
    )
    endpoint.key = ADMIN
    return endpoint
