"""A box in multi-model mode, and the calls of the platform to it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import requests

from tests.support.boxes import RunningBox, wait_until
from tests.support.model_archives import ArchiveFolder

X: dict[str, Any] = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}


class Endpoint:
    """A box in multi-model mode, with what the platform does."""

    def __init__(self, box: RunningBox, platform: ArchiveFolder) -> None:
        self.box, self.platform, self.url = box, platform, box.url

    def load(self, name: str, url: str, target: str = "") -> requests.Response:
        headers = {"X-Amzn-SageMaker-Target-Model": target} if target else {}
        body = {"model_name": name, "url": url}
        return requests.post(f"{self.url}/models", json=body, headers=headers, timeout=120)

    def begun(self, name: str, load: Future[requests.Response]) -> None:
        """Wait until a load is under way."""
        staged = self.box.run_folder() / "models" / name
        wait_until(lambda: staged.exists() or load.done(), description="the load begun")
        assert not load.done(), load.result().text

    def unload(self, name: str) -> requests.Response:
        return requests.delete(f"{self.url}/models/{name}", timeout=120)

    def get(self, name: str) -> requests.Response:
        return requests.get(f"{self.url}/models/{name}", timeout=10)

    def page(self, **query: Any) -> dict[str, Any]:
        listed: dict[str, Any] = requests.get(f"{self.url}/models", params=query, timeout=10).json()
        return listed

    def names(self) -> list[str]:
        return [row["modelName"] for row in self.page(limit=1000)["models"]]

    def invoke(self, name: str, body: object = X) -> requests.Response:
        return requests.post(f"{self.url}/models/{name}/invoke", json=body, timeout=60)

    def y(self, name: str) -> list[float]:
        """What the model makes of 1 and 2."""
        answer = self.invoke(name)
        assert answer.status_code == 200, answer.text
        data: list[float] = answer.json()["outputs"][0]["data"]
        return data

    def loaded(self, name: str, url: str, target: str = "") -> str:
        answer = self.load(name, url, target)
        assert answer.status_code == 200, answer.text
        return name

    def process(self, name: str) -> int:
        """The pid of one of the supervisor's children."""
        return int(self.box.child(name)["pid"])
