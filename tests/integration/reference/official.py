"""Start boxes with the official Triton container's settings, and call them as SageMaker does."""

from __future__ import annotations

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.multi_model_endpoint import MultiModelEndpoint, shared_endpoint

#: The header that opens the restricted API, with the values of Triton's documentation.
ADMIN = {"admin-key": "admin-value"}
RESTRICTED = "--http-restricted-api=model-repository:admin-key=admin-value"
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


def single_model_box(boxes: Boxes) -> RunningBox:
    """Return a box with two models that have no client, one of them the default, and one client."""
    return boxes(
        ("echo", "words"),
        ({"claims/client.py": CLAIMING_CLIENT},),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
        SAGEMAKER_TRITON_ADDITIONAL_ARGS=RESTRICTED,
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
    )


def multi_model_box(boxes: Boxes) -> MultiModelEndpoint:
    """Return a box in multi-model mode whose model routes need the key."""
    endpoint = shared_endpoint(
        boxes, SAGEMAKER_TRITON_ADDITIONAL_ARGS=RESTRICTED, SAGEMAKER_MODEL_SERVER_WORKERS="1"
    )
    endpoint.key = ADMIN
    return endpoint
