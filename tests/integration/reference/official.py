"""Start boxes with the official Triton container's settings, and call them as SageMaker does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.boxes import RunningBox, running_box
from tests.support.multi_model_endpoint import MultiModelEndpoint, running_endpoint
from tests.support.tritons import MODELS

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


@contextmanager
def running_single_model_box(folder: Path) -> Iterator[RunningBox]:
    """Run a box with two models that have no client, one of them the default, and one client."""
    for name in ("echo", "words"):
        MODELS[name].write(folder / "model" / name)
    clients = folder / "clients"
    (clients / "claims").mkdir(parents=True)
    (clients / "claims" / "client.py").write_text(CLAIMING_CLIENT)
    with running_box(
        folder,
        folder / "model",
        clients=(clients,),
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="echo",
        SAGEMAKER_TRITON_ADDITIONAL_ARGS=RESTRICTED,
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
    ) as box:
        yield box


@contextmanager
def running_multi_model_box(folder: Path) -> Iterator[MultiModelEndpoint]:
    """Run a box in multi-model mode without a model, whose model routes need the key."""
    variables = {"SAGEMAKER_TRITON_ADDITIONAL_ARGS": RESTRICTED, "SAGEMAKER_MODEL_SERVER_WORKERS": "1"}
    with running_endpoint(folder, (), **variables) as endpoint:
        endpoint.key = ADMIN
        yield endpoint
