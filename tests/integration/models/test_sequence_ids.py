"""Two callers never share the state of a sequence: an id that a model would read as another is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.box_fixture import Boxes
from tests.support.boxes import RunningBox
from tests.support.tritons import Model

#: Two processes: each has a slot for one sequence.
SEQUENCE = """
instance_group [{count: 2 kind: KIND_CPU}]
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input [
    {name: "START" control [{kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1]}]},
    {name: "CORRID" control [{kind: CONTROL_SEQUENCE_CORRID data_type: TYPE}]}
  ]
}
"""
BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size={}"
WRONG = ["", -1, 0, 2**64, 1.5, True, None, [1], {"a": 1}]
#: Ids that are right and wrong for a model, by the datatype of its CORRID.
CASES: dict[str, tuple[list[Any], list[Any]]] = {
    "TYPE_UINT64": ([1, 2**64 - 1], ["user-1001", "7", *WRONG]),
    "TYPE_INT32": ([1, 2**31 - 1], ["user-1001", 2**31, 2**32 + 1, *WRONG]),
    "TYPE_STRING": (["user-1001", "user-1002"], [7, *WRONG]),
}


class OfType(Model):
    type_: str

    def config(self) -> str:
        config = re.sub(r"(dynamic_batching|instance_group) *(\{[^{}]*\}|\[[^\]]*\])", "", super().config())
        return config + SEQUENCE.replace("TYPE}", f"{self.type_}}}")


def counting(type_: str) -> Model:
    """Add up the numbers of each sequence, as the model is told of it."""
    model = OfType(
        'self.sums = getattr(self, "sums", {})\n'
        'key = tensor(request, "CORRID").ravel()[0]\n'
        'if tensor(request, "START").ravel()[0]:\n    self.sums[key] = 0\n'
        'self.sums[key] = self.sums.get(key, 0) + int(tensor(request, "x").ravel()[0])\n'
        'return {"y": np.array([[self.sums[key]]], np.int32)}',
        {"x": ("INT32", [1])},
        {"y": ("INT32", [1])},
        max_batch_size=1,
    )
    object.__setattr__(model, "type_", type_)
    return model


@pytest.fixture
def box(boxes: Boxes) -> RunningBox:
    return boxes({type_.lower(): counting(type_) for type_ in CASES})


def send(
    box: RunningBox, way: str, model: str, identity: object, number: int, start: bool
) -> requests.Response:
    parameters = {"sequence_id": identity, "sequence_start": start, "sequence_end": False}
    tensor = {"name": "x", "datatype": "INT32", "shape": [1, 1], "data": [number]}
    text = json.dumps({"parameters": parameters, "inputs": [tensor]}).encode()
    url, headers = f"{box.url}/v2/models/{model}/infer", {"Content-Type": "application/json"}
    if way == "invocations":
        url = f"{box.url}/invocations?modelname={model}"
    if way == "binary":
        url, headers = f"{box.url}/invocations?modelname={model}", {"Content-Type": BINARY.format(len(text))}
    if way == "generate":
        url, text = (
            f"{box.url}/v2/models/{model}/generate",
            json.dumps({"x": [number], **parameters}).encode(),
        )
    return requests.post(url, data=text, headers=headers, timeout=60)


@pytest.mark.parametrize("way", ["v2", "invocations", "binary", "generate"])
@pytest.mark.parametrize("type_", CASES)
def test_an_id_is_one_that_the_model_tells_from_others_or_a_400(
    box: RunningBox, way: str, type_: str
) -> None:
    right, wrong = CASES[type_]
    for identity in wrong:
        answer = send(box, way, type_.lower(), identity, 1, True)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_input"), identity
    if way == "generate":
        return  # it takes no batch of one, as this model has
    if type_ == "TYPE_STRING":
        return  # Triton 2.51 gives this Python model two texts for its one id, and refuses each request
    for number, identity in enumerate(right, 1):
        for start in (True, False):
            answer = send(box, way, type_.lower(), identity, number, start)
            assert answer.status_code == 200, answer.text
    for number, identity in enumerate(right, 1):
        answer = send(box, way, type_.lower(), identity, 0, False)
        assert answer.json()["outputs"][0]["data"] == [2 * number]


def test_a_second_id_in_one_body_is_refused(box: RunningBox) -> None:
    body = '{"parameters":{"sequence_start":true,"sequence_id":"user-1","sequence_id":7},"inputs":[]}'
    answer = requests.post(f"{box.url}/v2/models/type_uint64/infer", data=body, timeout=60)
    assert answer.status_code == 400


#: Two outputs of a step that keeps sequences, which the ensemble gives as its own.
AROUND = """
platform: "ensemble"
max_batch_size: 1
input [{name: "x", data_type: TYPE_INT32, dims: [1]}]
output [{name: "y", data_type: TYPE_INT32, dims: [1]}, {name: "z", data_type: TYPE_INT32, dims: [1]}]
ensemble_scheduling {
  step {
    model_name: "pair"
    model_version: -1
    input_map {key: "x", value: "x"}
    output_map [{key: "y", value: "y"}, {key: "z", value: "z"}]
  }
}
"""


class Around(Model):
    def write(self, folder: Path) -> None:
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(AROUND)


def test_an_ensembles_answer_says_its_sequence_once(boxes: Boxes) -> None:
    """Triton repeats the three members for each output, in one object."""
    pair = OfType(
        'x = tensor(request, "x")\nreturn {"y": x, "z": x + 1}',
        {"x": ("INT32", [1])},
        {"y": ("INT32", [1]), "z": ("INT32", [1])},
        max_batch_size=1,
    )
    object.__setattr__(pair, "type_", "TYPE_UINT64")
    box = boxes({"pair": pair, "around": Around("", {}, {})})
    for way in ("v2", "invocations", "binary"):
        answer = send(box, way, "around", 7, 20, True)
        assert answer.status_code == 200, answer.text
        names: list[str] = []

        def note(pairs: list[tuple[str, Any]], names: list[str] = names) -> dict[str, Any]:
            names += [name for name, _ in pairs if name.startswith("sequence_")]
            return dict(pairs)

        json.loads(answer.content, object_pairs_hook=note)
        assert sorted(names) == ["sequence_end", "sequence_id", "sequence_start"], answer.text
        data = {row["name"]: row["data"] for row in answer.json()["outputs"]}
        assert data == {"y": [20], "z": [21]}
