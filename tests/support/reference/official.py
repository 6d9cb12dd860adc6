"""Start boxes with the official Triton container's settings, and call them as SageMaker does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from tests.support.boxes import RunningBox, running_box
from tests.support.model_archives import ArchiveFolder, multiplying_model
from tests.support.runtime_client import runtime_client
from tests.support.tritons import MODELS

#: The header that opens the restricted API, with the values of Triton's documentation.
ADMIN = {"admin-key": "admin-value"}
RESTRICTED = "--http-restricted-api=model-repository:admin-key=admin-value"
#: A client for the content type that the official notebooks use for their JSON.
CLAIMING_CLIENT = """
from sm.client.base import Client, Payload


class File(Payload):
    main_field = "content"
    content_types = ("application/octet-stream",)

    content: bytes


class Claims(Client):
    payload = File

    def inference(self, payload):
        return {"bytes": len(payload.content)}
"""


def runtime(box: RunningBox) -> Any:
    """Return boto3's client of SageMaker's runtime with the box as its endpoint."""
    return runtime_client(box.url)


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


@dataclass
class MultiModel:
    """A box in multi-model mode, and the folder into which SageMaker unpacks archives."""

    box: RunningBox
    platform: ArchiveFolder

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        headers = {**ADMIN, **options.pop("headers", {})}
        return requests.request(method, f"{self.box.url}{path}", headers=headers, timeout=60, **options)

    def load(self, name: str, url: str, target: str = "") -> requests.Response:
        headers = {"X-Amzn-SageMaker-Target-Model": target} if target else {}
        return self.request("POST", "/models", json={"model_name": name, "url": url}, headers=headers)

    def ensure_loaded(self, name: str, target: str = "") -> None:
        """Load an archive of one model, unless it is loaded already."""
        if self.request("GET", f"/models/{name}").status_code == 200:
            return
        answer = self.load(name, self.platform.write_flat(name, multiplying_model(2)), target)
        assert answer.status_code == 200, answer.text


@contextmanager
def running_multi_model_box(folder: Path) -> Iterator[MultiModel]:
    """Run a box in multi-model mode without a model."""
    platform = ArchiveFolder(folder / "archives")
    with running_box(
        folder,
        folder / "nowhere",
        clients=(),
        SAGEMAKER_MULTI_MODEL="true",
        TRIREME_MODEL_ARCHIVES=str(platform.home),
        SAGEMAKER_TRITON_ADDITIONAL_ARGS=RESTRICTED,
        SAGEMAKER_MODEL_SERVER_WORKERS="1",
    ) as box:
        yield MultiModel(box, platform)
