"""The article's requests, byte for byte, and its model repository with ONNX graphs in place of plans.

Folders, names, datatypes and shapes are the article's. The weights are the demo's: the recipes' graphs with
renamed tensors and other shapes. As in the article, only ResNet has labels, numbered ones.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx

from sm.settings import HERE, Settings

JSON = "application/json"
PICTURES = {
    "resnet": HERE / "clients" / "resnet" / "sample" / "coffee.jpg",
    "yolov5": HERE / "clients" / "yolov5" / "sample" / "collage.jpg",
}
RUNNER = HERE / "extensions" / "trireme_extensions" / "convert" / "onnx_cpu"
TYPES = {"FP32": onnx.TensorProto.FLOAT, "INT64": onnx.TensorProto.INT64}


def payload(model: str) -> dict[str, str]:
    if model == "bert_base":
        return {"text": "The world has [MASK] people."}
    return {"img": base64.b64encode(PICTURES[model].read_bytes()).decode()}


def request(model: str) -> str:
    """Return the body of a request, made as the notebook makes it."""
    return json.dumps({"modelname": model, "payload": payload(model)})


def golden_answer(model: str) -> Any:
    """What the demo answers to the article's request."""
    return json.loads((HERE / "clients" / model / "sample" / "golden.json").read_text())


class Tensor(NamedTuple):
    """One input or output: its name in the recipe's graph, its new name and its shape with the batch; -1 is free."""

    old: str
    name: str
    shape: tuple[int, ...]
    datatype: str = "FP32"
    extra: str = ""

    def config(self) -> str:
        dims = ", ".join(map(str, self.shape))
        return f'{{ name: "{self.name}" data_type: TYPE_{self.datatype} dims: [ {dims} ] {self.extra} }}'


def write_model(folder: Path, model: str, inputs: Sequence[Tensor], output: Tensor) -> None:
    """Write a model without ``max_batch_size``: the batch is the first dimension of its tensors."""
    version = folder / "1"
    version.mkdir(parents=True)
    for name in ("model.py", "batching.py", "engines.py", "request_token.py"):
        shutil.copy(RUNNER / name, version)
    (path,) = (Settings.read({}).cache / "models" / model).glob("*/model.onnx")
    graph = onnx.load(path)
    rename_tensors(graph.graph, (*inputs, output))
    onnx.save(graph, version / "model.onnx")
    tensors = "".join(f"input {tensor.config()}\n" for tensor in inputs) + f"output {output.config()}\n"
    groups = "instance_group { count: 1 kind: KIND_CPU }\n"
    (folder / "config.pbtxt").write_text(f'name: "{folder.name}"\nbackend: "python"\n{tensors}{groups}')


def rename_tensors(graph: onnx.GraphProto, tensors: Sequence[Tensor]) -> None:
    """Keep only these inputs and outputs, with the new names and shapes."""
    by_old_name = {tensor.old: tensor for tensor in tensors}
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [by_old_name[name].name if name in by_old_name else name for name in names]
    for values in (graph.input, graph.output):
        for value in list(values):
            tensor = by_old_name.get(value.name)
            if tensor is None:
                values.remove(value)
                continue
            sizes = [size if size >= 0 else f"{tensor.name}_{at}" for at, size in enumerate(tensor.shape)]
            info = (tensor.name, TYPES[tensor.datatype], sizes)
            value.CopyFrom(onnx.helper.make_tensor_value_info(*info))


def write_resnet(folder: Path, labels: Path) -> None:
    """``input`` [1, 3, 224, 224] to ``output`` [1, 1000], with labels as the article's file has them."""
    output = Tensor("logits", "output", (1, 1000), extra='label_filename: "labels.txt"')
    write_model(folder, "resnet", [Tensor("input", "input", (1, 3, 224, 224))], output)
    lines = enumerate([*labels.read_text().splitlines(), "over"])
    (folder / "labels.txt").write_text("".join(f"{index}:{label}\n" for index, label in lines))


def write_yolov5(folder: Path) -> None:
    """``images`` [1, 3, 640, 640] to ``output`` [1, 25200, 85]; no other file."""
    inputs = [Tensor("images", "images", (1, 3, 640, 640))]
    write_model(folder, "yolov5", inputs, Tensor("output0", "output", (1, 25200, 85)))


def write_bert(folder: Path) -> None:
    """Three INT64 inputs [-1, -1] to ``output`` [-1, -1, 30522]; no vocabulary."""
    inputs = ("input_ids", "token_type_ids", "attention_mask")
    tensors = [Tensor(name, name, (-1, -1), "INT64") for name in inputs]
    write_model(folder, "bert_base", tensors, Tensor("logits", "output", (-1, -1, 30522)))


def write_repository(folder: Path, demo: Path) -> Path:
    """Write the article's three models; ``demo`` has the labels."""
    write_resnet(folder / "resnet", demo / "resnet" / "labels.txt")
    write_yolov5(folder / "yolov5s")
    write_bert(folder / "bert_base")
    return folder
