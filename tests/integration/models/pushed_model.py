"""A box with a model that tests replace: its versions, its calls, and ``sm push``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import requests

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.load import Load, dispatch_body
from tests.support.model_archives import multiplying_model

#: It gathers records of many callers, which must still be answered by one version each.
CLIENT = """
import numpy as np

from sm.client import Payload, TensorClient


class Numbers(Payload):
    x: list[float]


class Scaled(TensorClient):
    model, payload = "scaled", Numbers

    def setup(self):
        self.label = (self.repository / "scaled" / "label.txt").read_text()

    def preprocess_batch(self, payloads):
        return {"x": np.float32([payload.x for payload in payloads])}

    def preprocess(self, payload):
        return {"x": np.float32(payload.x)}

    def postprocess(self, outputs, payload):
        FAULT
        return [self.label, "client FACTOR", outputs["y"].tolist()]
"""


def write(
    repository: Path,
    factor: int,
    *,
    client: str = CLIENT,
    fault: str = "pass",
    execute: str = "pass",
    failing: str = "",
) -> None:
    """Write a version of the model: weights, a file that its client reads, and the client.

    ``fault`` is run by the client and ``execute`` by the model; ``failing`` is raised when the model is loaded.
    """
    model, staged = multiplying_model(factor, failing=failing), repository.parent / "staged"
    shutil.rmtree(staged, ignore_errors=True)
    replace(model, answer=f"{execute}\n{model.answer}").write(staged)
    (staged / "label.txt").write_text(f"label {factor}")
    shutil.rmtree(repository / "scaled", ignore_errors=True)
    (repository / "code").mkdir(parents=True, exist_ok=True)
    staged.rename(repository / "scaled")
    code = client.replace("FAULT", fault).replace("FACTOR", str(factor))
    (repository / "code" / "scaled.py").write_text(code)


def expected(factor: int) -> list[Any]:
    """Return what a version answers: all of it is of this version."""
    return [f"label {factor}", f"client {factor}", [factor, 2 * factor]]


class Pushed:
    """A box, its repository, and calls of its model."""

    def __init__(self, box: RunningBox, repository: Path) -> None:
        self.box, self.repository, self.factors, self.seen = box, repository, count(2), set[int]()
        self.route = f"{box.url}/models/scaled"

    def write(self, **faults: str) -> int:
        factor = next(self.factors)
        write(self.repository, factor, **faults)
        return factor

    def push(self, **body: object) -> requests.Response:
        return requests.post(f"{self.route}/versions", json=body or None, timeout=120)

    def decide(self, action: str) -> requests.Response:
        return requests.patch(f"{self.route}/versions", json={"action": action}, timeout=60)

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = requests.get(self.route, timeout=30).json()
        return row

    def ask(self, identity: str = "", payload: object = None, **headers: str) -> requests.Response:
        body = {"modelname": "scaled", "payload": payload or {"x": [1, 2]}}
        if identity:
            headers["X-Amzn-SageMaker-Inference-Id"] = identity
        return requests.post(f"{self.box.url}/invocations", json=body, headers=headers, timeout=60)

    def factor(self, identity: str = "", **headers: str) -> int:
        """Return the version that answers; the model and its client are of one version."""
        answer = self.ask(identity, **headers)
        assert answer.status_code == 200, answer.text
        factor = int(answer.json()["result"][2][0])
        assert answer.json()["result"] == expected(factor)
        return factor

    def left(self) -> int:
        """Return how many versions Triton has."""
        return len(list((self.box.run_folder() / "repository").glob("scaled*")))

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sm.cli", "push", "scaled", "--to", self.box.url, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)

    @contextmanager
    def callers(self, number: int = 6) -> Iterator[Counter[str]]:
        """Call from several threads meanwhile; yields the statuses. Each good answer is of one version.

        ``seen`` then has the versions that have answered.
        """
        with Load(self.box.port, dispatch_body("scaled", {"x": [1, 2]})).start(number) as load:
            yield load.outcomes
        results = [json.loads(body)["result"] for body in load.bodies]
        self.seen = {int(result[2][0]) for result in results}
        assert all(result in map(expected, self.seen) for result in results), results


@contextmanager
def pushed(boxes: Boxes, folder: Path, **variables: str) -> Iterator[Pushed]:
    """Run a box with the first version of the model."""
    write(folder / "repository", 1)
    settings: Any = {
        "TRIREME_MODEL_POLL": "0",
        "TRIREME_DRAIN_SECONDS": "1",
        "SAGEMAKER_MODEL_SERVER_WORKERS": "2",
        **variables,
    }
    with boxes.own(folder / "repository", **settings) as box:
        yield Pushed(box, folder / "repository")
