"""Call a box in multi-model mode as SageMaker does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from tests.support.box_fixture import Boxes, ClientSource
from tests.support.boxes import CLIENTS, RunningBox, running_box
from tests.support.model_archives import ArchiveFolder, multiplying_model
from tests.support.tritons import ECHO_REQUEST

REQUEST_BODY = ECHO_REQUEST


class MultiModelEndpoint:
    """A box in multi-model mode, and SageMaker's calls to it."""

    def __init__(self, box: RunningBox) -> None:
        self.box, self.platform, self.url = box, ArchiveFolder(box.folder / "models"), box.url
        #: Sent with :meth:`request`, which has the key of a box with restricted routes.
        self.key: dict[str, str] = {}

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        headers = {**self.key, **options.pop("headers", {})}
        return requests.request(method, f"{self.url}{path}", headers=headers, timeout=120, **options)

    def load(self, name: str, url: str, target: str = "") -> requests.Response:
        headers = {"X-Amzn-SageMaker-Target-Model": target} if target else {}
        return self.request("POST", "/models", json={"model_name": name, "url": url}, headers=headers)

    def ensure_loaded(self, name: str, target: str = "") -> None:
        """Load an archive of a model that doubles, unless it is loaded already."""
        if self.request("GET", f"/models/{name}").status_code != 200:
            self.load_successfully(name, self.platform.write_flat(name, multiplying_model(2)), target)

    def unload(self, name: str) -> requests.Response:
        return self.request("DELETE", f"/models/{name}")

    def list_page(self, **query: Any) -> dict[str, Any]:
        return dict(requests.get(f"{self.url}/models", params=query, timeout=10).json())

    def names(self) -> list[str]:
        return [row["modelName"] for row in self.list_page(limit=1000)["models"]]

    def invoke(self, name: str, body: object = REQUEST_BODY) -> requests.Response:
        return requests.post(f"{self.url}/models/{name}/invoke", json=body, timeout=60)

    def infer_y(self, name: str) -> list[float]:
        """Invoke the model with ``x = [1, 2]``, and return ``y``."""
        answer = self.invoke(name)
        assert answer.status_code == 200, answer.text
        data: list[float] = answer.json()["outputs"][0]["data"]
        return data

    def load_successfully(self, name: str, url: str, target: str = "") -> str:
        answer = self.load(name, url, target)
        assert answer.status_code == 200, answer.text
        return name

    def child_pid(self, name: str) -> int:
        """Return the process id of a child of the supervisor."""
        return int(self.box.child(name)["pid"])


def infer(url: str, name: str, **options: Any) -> requests.Response:
    """Call a model of any box by the v2 protocol, with ``x = [1, 2]``."""
    return requests.post(
        f"{url}/invocations", params={"modelname": name}, json=REQUEST_BODY, timeout=70, **options
    )


def states(box: RunningBox) -> dict[str, str]:
    """Return the states of the models of a box that loads them on demand."""
    rows = requests.get(f"{box.url}/models", timeout=10).json()["models"]
    return {row["modelName"]: row["state"] for row in rows}


def shared_endpoint(
    boxes: Boxes, clients: Iterable[ClientSource] = (), **settings: str
) -> MultiModelEndpoint:
    """Return a box in multi-model mode that all tests share that ask for the same."""
    box = boxes(None, clients, mode="multi-model", **settings)
    return MultiModelEndpoint(box)


@contextmanager
def running_endpoint(
    folder: Path, clients: tuple[Path, ...] = (CLIENTS,), command_prefix: str = "", **variables: str
) -> Iterator[MultiModelEndpoint]:
    """Run a box in multi-model mode; its archives lie in ``folder``."""
    platform = ArchiveFolder(folder / "models")
    variables |= {"SAGEMAKER_MULTI_MODEL": "true", "TRIREME_MODEL_ARCHIVES": str(platform.home)}
    with running_box(folder, None, True, clients, command_prefix, **variables) as box:
        yield MultiModelEndpoint(box)
