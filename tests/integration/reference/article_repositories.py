"""Write the article's model repository with ONNX graphs in the place of TensorRT plans.

Folders, names, datatypes and shapes are the article's. The weights are the demo's: the recipes' graphs with
renamed tensors and other shapes. As in the article, only ResNet has labels, numbered ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from sm.settings import HERE, Settings

RUNNER = HERE / "sm" / "triton" / "onnx_cpu"
TYPES = {"FP32": onnx.TensorProto.FLOAT, "INT64": onnx.TensorProto.INT64}

#: Dimensions; -1 is free.
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """One input or output: its name in the recipe's graph, its new name and its shape with the batch."""

    old: str
    name: str
    shape: Shape
    datatype: str = "FP32"
    extra: str = ""

    def config(self) -> str:
        dims = ", ".join(map(str, self.shape))
        return f'{{ name: "{self.name}" data_type: TYPE_{self.datatype} dims: [ {dims} ] {self.extra} }}'


def write_model(
    folder: Path, model: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], config: str = ""
) -> None:
    """Write a model without ``max_batch_size``: the batch is the first dimension of its tensors."""
    version = folder / "1"
    version.mkdir(parents=True)
    for name in ("model.py", "batching.py", "engines.py", "request_token.py"):
        shutil.copy(RUNNER / name, version)
    onnx.save(rename_tensors(recipe_graph(model), (*inputs, *outputs), outputs), version / "model.onnx")
    (folder / "config.pbtxt").write_text(
        "\n".join(
            [
                f'name: "{folder.name}"',
                'backend: "python"',
                *(f"input {tensor.config()}" for tensor in inputs),
                *(f"output {tensor.config()}" for tensor in outputs),
                "instance_group { count: 1 kind: KIND_CPU }",
                config,
            ]
        )
    )


def recipe_graph(model: str) -> onnx.ModelProto:
    """Load the graph that the model's recipe builds."""
    (path,) = (Settings.read({}).cache / "models" / model).glob("*/model.onnx")
    return onnx.load(path)


def rename_tensors(
    graph: onnx.ModelProto, tensors: Sequence[Tensor], outputs: Sequence[Tensor]
) -> onnx.ModelProto:
    names = {tensor.old: tensor.name for tensor in tensors}
    for node in graph.graph.node:
        _replace(node.input, names.get)
        _replace(node.output, names.get)
    output_names = {tensor.name for tensor in outputs}
    for values in (graph.graph.input, graph.graph.output):
        for value in list(values):
            value.name = names.get(value.name, value.name)
            described = next((tensor for tensor in tensors if tensor.name == value.name), None)
            if described is None:
                assert value.name not in output_names
                values.remove(value)
                continue
            value.CopyFrom(
                onnx.helper.make_tensor_value_info(
                    value.name,
                    TYPES[described.datatype],
                    [size if size >= 0 else f"{value.name}_{at}" for at, size in enumerate(described.shape)],
                )
            )
    return graph


def _replace(names: object, change: Callable[[str, str], str]) -> None:
    for at, name in enumerate(names):  # type: ignore[arg-type,var-annotated]
        names[at] = change(name, name)  # type: ignore[index]


def write_resnet(folder: Path, labels: Path, name: str = "output", batch: int = 1) -> None:
    """``input`` [1, 3, 224, 224] to ``output`` [1, 1000], with labels as the article's file has them."""
    extra = 'label_filename: "labels.txt"'
    write_model(
        folder,
        "resnet",
        [Tensor("input", "input", (batch, 3, 224, 224))],
        [Tensor("logits", name, (batch, 1000), extra=extra)],
    )
    names = labels.read_text().splitlines()
    (folder / "labels.txt").write_text(
        "".join(f"{index}:{label}\n" for index, label in enumerate([*names, "over"]))
    )


def write_yolov5(folder: Path, config: str = "", side: int = 640) -> None:
    """``images`` [1, 3, 640, 640] to ``output`` [1, 25200, 85]; no other file."""
    write_model(
        folder,
        "yolov5",
        [Tensor("images", "images", (1, 3, side, side))],
        [Tensor("output0", "output", (1, 25200, 85))],
        config,
    )


def write_bert(folder: Path) -> None:
    """Three INT64 inputs [-1, -1] to ``output`` [-1, -1, 30522]; no vocabulary."""
    inputs = ("input_ids", "token_type_ids", "attention_mask")
    write_model(
        folder,
        "bert_base",
        [Tensor(name, name, (-1, -1), "INT64") for name in inputs],
        [Tensor("logits", "output", (-1, -1, 30522))],
    )


def write_ensemble(
    folder: Path, step: str, inputs: Mapping[str, Shape], outputs: Mapping[str, Shape]
) -> None:
    """Write an ensemble of one step that renames the step's tensors."""
    (folder / "1").mkdir(parents=True)

    def tensors(kind: str, described: Mapping[str, Shape]) -> str:
        return "\n".join(
            f"{kind} {Tensor('', f'{name}_of_all', shape).config()}" for name, shape in described.items()
        )

    def maps(kind: str, described: Mapping[str, Shape]) -> str:
        return " ".join(f'{kind} {{ key: "{name}" value: "{name}_of_all" }}' for name in described)

    (folder / "config.pbtxt").write_text(
        f'name: "{folder.name}"\nplatform: "ensemble"\n'
        f"{tensors('input', inputs)}\n{tensors('output', outputs)}\n"
        f'ensemble_scheduling {{ step {{ model_name: "{step}" model_version: -1 '
        f"{maps('input_map', inputs)} {maps('output_map', outputs)} }} }}\n"
    )
