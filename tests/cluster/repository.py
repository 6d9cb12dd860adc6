"""The models of the cluster's tests: one that answers at once, one that waits as a GPU would, and a session's client."""

from __future__ import annotations

from pathlib import Path

from tests.support.faults.inputs import JSON, Sample
from tests.support.load import dispatch_body
from tests.support.tritons import Model

#: Answers at once; and after WAIT_S, one request after the other.
DOUBLE, WAIT = "double", "wait"
WAIT_S = 0.05
INPUTS, OUTPUTS = {"x": ("FP32", [2])}, {"y": ("FP32", [2])}
MODELS = {
    DOUBLE: Model('return {"y": 2 * tensor(request, "x")}', INPUTS, OUTPUTS),
    WAIT: Model(f'time.sleep({WAIT_S})\nreturn {{"y": 2 * tensor(request, "x")}}', INPUTS, OUTPUTS),
}
NUMBERS = '''
import numpy as np

from sm.client import TensorClient, TextPayload


class Numbers(TensorClient):
    """Doubles a number."""

    model, payload = "{model}", TextPayload

    def preprocess(self, text):
        return {{"x": np.full(2, float(text.text), np.float32)}}

    def postprocess(self, outputs, text):
        return outputs["y"].tolist()
'''
COUNTER = '''
from sm.client import Client, TextPayload


class Counter(Client):
    """Counts the requests of a session."""

    name, payload = "counter", TextPayload

    def inference(self, text):
        count = int(text.session.get("count", b"0")) + 1
        text.session["count"] = str(count).encode()
        return count
'''


def write_cluster_repository(folder: Path) -> Path:
    """Write the repository, and return its folder."""
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "counter.py").write_text(COUNTER)
    for name, model in MODELS.items():
        model.write(folder / name)
        (folder / "code" / f"{name}.py").write_text(NUMBERS.format(model=name))
    return folder


def samples(model: str = DOUBLE, count: int = 32) -> list[Sample]:
    """Return requests whose right answers all differ."""
    return [
        Sample(
            f"{model} {number}",
            *(model, "/invocations", JSON, dispatch_body(model, {"text": str(number)})),
            golden={"modelname": model, "result": [2.0 * number] * 2},
        )
        for number in range(count)
    ]
