"""Boxes that the tests of a reference system share, with the official Triton container's settings."""

from __future__ import annotations

import pytest

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.demo_box import box as demo_box
from tests.support.demo_box import demo
from tests.support.multi_model_endpoint import MultiModelEndpoint, shared_endpoint

__all__ = ["demo", "demo_box"]

#: Opens the restricted API to the header below, both with the values of Triton's documentation.
RESTRICTED = "--http-restricted-api=model-repository:admin-key=admin-value"
ADMIN = {"admin-key": "admin-value"}
#: A client for the content type that the official notebooks use for their JSON.
CLAIMING_CLIENT = """
from sm.client import Client, Payload


class File(Payload):
    main_field = "content"
    content_types = ("application/octet-stream",)

    content: bytes


class Claims(Client):
    payload = File

    def inference(self, payload):
        return {"bytes": len(payload.content)}
"""


@pytest.fixture
def single_box(boxes: Boxes) -> RunningBox:
    """A box with two models that have no client, one of them the default, and one client."""
    return boxes(
        ("echo", "words"),
        ({"claims/client.py": CLAIMING_CLIENT},),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
        SAGEMAKER_TRITON_ADDITIONAL_ARGS=RESTRICTED,
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
    )


@pytest.fixture
def multi_model(boxes: Boxes) -> MultiModelEndpoint:
    """A box in multi-model mode whose model routes need a key."""
    endpoint = shared_endpoint(
        boxes, SAGEMAKER_TRITON_ADDITIONAL_ARGS=RESTRICTED, SAGEMAKER_MODEL_SERVER_WORKERS="1"
    )
    endpoint.key = ADMIN
    return endpoint


@pytest.fixture
def open_box(boxes: Boxes) -> MultiModelEndpoint:
    """A box in multi-model mode whose model routes need no key."""
    return shared_endpoint(boxes, SAGEMAKER_MODEL_SERVER_WORKERS="1")
