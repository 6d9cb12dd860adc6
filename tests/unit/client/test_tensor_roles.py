"""Image inputs and score outputs are found by rank and type; a client finds its model by parameter, name or alias."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sm.client import ImagePayload, ModelMetadata, TensorClient, TensorMetadata, TextPayload
from sm.client.tensor_roles import UnsuitableModel, find_image, find_output, label_file
from sm.errors import StartError
from sm.plugins.checks import choose_model, is_served
from tests.support.client_sources import EmptyTriton

Shapes = dict[str, tuple[str, tuple[int, ...]]]


def model_metadata(inputs: Shapes, outputs: Shapes | None = None, batch: int = 0) -> ModelMetadata:
    given, taken = (
        {name: TensorMetadata(name, datatype, shape) for name, (datatype, shape) in shapes.items()}
        for shapes in (inputs, outputs or {})
    )
    return ModelMetadata("some", ("1",), batch, given, taken)


@pytest.mark.parametrize(
    ("shape", "batch", "expected"),
    [
        ((1, 3, 640, 640), 0, (640, 640, "CHW")),
        ((-1, 3, -1, -1), 0, (-1, -1, "CHW")),
        ((4, 3, 384, 640), 0, (384, 640, "CHW")),
        ((3, 224, 224), 8, (224, 224, "CHW")),
        ((3, 224, 224), 0, (224, 224, "CHW")),
        ((224, 224, 3), 8, (224, 224, "HWC")),
        ((1, 224, 192, 3), 0, (224, 192, "HWC")),
        ((-1, -1, -1), 8, (-1, -1, "CHW")),
    ],
)
@pytest.mark.parametrize("datatype", ["FP32", "UINT8"])
def test_an_image_input_is_found_with_fixed_or_free_batch_and_sides(
    shape: tuple[int, ...], batch: int, expected: tuple[int, int, str], datatype: str
) -> None:
    image = find_image(model_metadata({"x": (datatype, shape), "iou": ("FP32", (1,))}, batch=batch))
    assert (image.height, image.width, image.layout) == expected
    assert (image.name, image.datatype) == ("x", datatype)


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": ("FP16", (3, 224, 224))},
        {"x": ("FP32", (1, 10, 224, 224))},
        {"x": ("FP32", (1, 1, 3, 224, 224))},
        {"x": ("FP32", (3, 224, 224)), "y": ("FP32", (3, 224, 224))},
        {},
    ],
    ids=["FP16", "10 channels", "rank 5", "two images", "no input"],
)
def test_the_error_for_a_model_without_one_image_input_names_its_inputs(inputs: Shapes) -> None:
    with pytest.raises(UnsuitableModel) as caught:
        find_image(model_metadata(inputs))
    assert all(name in str(caught.value) for name in inputs)


def test_an_output_is_found_by_its_rank_or_by_a_preferred_name() -> None:
    outputs: Shapes = {"output": ("FP32", (1, 25200, 85)), "345": ("FP32", (1, 3, 80, 80, 85))}
    assert find_output(model_metadata({}, outputs), 2).shape == (25200, 85)
    same_rank: Shapes = {"probs": ("FP32", (1000,)), "logits": ("FP32", (1000,))}
    assert find_output(model_metadata({}, same_rank, 8), 1, ("logits",)).name == "logits"
    with pytest.raises(UnsuitableModel):
        find_output(model_metadata({}, same_rank, 8), 1)


@pytest.mark.parametrize(
    ("shape", "max_batch", "expected"),
    [((-1, 3, 2, 2), 0, 1), ((1, 3, 2, 2), 0, 1), ((4, 3, 2, 2), 0, 4), ((3, 2, 2), 0, 0), ((3, 2, 2), 8, 1)],
)
def test_a_call_has_the_batch_that_the_model_takes_and_the_answer_is_the_records(
    shape: tuple[int, ...], max_batch: int, expected: int
) -> None:
    """A batch of a fixed size is filled with the record."""
    record, sent = np.arange(12, dtype=np.float32).reshape(3, 2, 2), []

    class Echoing(EmptyTriton):
        def metadata(self, model: str, version: str = "") -> ModelMetadata:
            return model_metadata({"x": ("FP32", shape)}, {"y": ("FP32", shape)}, max_batch)

        def infer(self, model: str, inputs: Any, **_: Any) -> dict[str, Any]:
            sent.append(inputs["x"].shape)
            return {"y": inputs["x"]}

    class Echo(TensorClient):
        model, payload = "some", TextPayload

        def preprocess(self, payload: Any) -> dict[str, Any]:
            return {"x": record}

        def postprocess(self, outputs: Any, payload: Any) -> Any:
            return outputs["y"]

    answer = Echo(Echoing(), Path(), Path()).inference(TextPayload(text=""))
    assert np.array_equal(np.asarray(answer), record)
    assert sent == [(expected, 3, 2, 2) if expected else (3, 2, 2)]


def test_the_label_file_is_the_configured_one_or_labels_txt(tmp_path: Path) -> None:
    assert label_file(tmp_path, "scores") is None
    (tmp_path / "labels.txt").touch()
    assert label_file(tmp_path, "scores") == tmp_path / "labels.txt"
    (tmp_path / "config.pbtxt").write_text('output { name: "scores" label_filename: "names.txt" }')
    assert label_file(tmp_path, "scores") == tmp_path / "names.txt"


def chosen_model(repository: Path, *served: str) -> str:
    class Serving(EmptyTriton):
        def metadata(self, model: str, version: str = "") -> ModelMetadata:
            return ModelMetadata(model, ("1",), 0) if model in served else super().metadata(model, version)

    class Detector(TensorClient):
        name = model = "yolov5"
        aliases = ("yolov5s", "yolov5m")
        payload = ImagePayload
        preprocess = postprocess = TensorClient.inference  # type: ignore[assignment]

    client = Detector(Serving(), repository, repository)
    return choose_model(client, client.repository, partial(is_served, client.triton))


def write_model_for_client(repository: Path, name: str, client: str = "yolov5") -> None:
    (repository / name).mkdir(parents=True)
    config = f'parameters {{ key: "trireme_client" value {{ string_value: "{client}" }} }}'
    (repository / name / "config.pbtxt").write_text(config)


def test_a_client_takes_the_model_that_names_it_else_its_own_else_an_alias(tmp_path: Path) -> None:
    assert chosen_model(tmp_path, "yolov5", "yolov5s") == "yolov5"
    assert chosen_model(tmp_path, "yolov5m", "yolov5s") == "yolov5s"
    assert chosen_model(tmp_path, "others") == "yolov5"
    write_model_for_client(tmp_path, "for_another_client", "resnet")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.pbtxt").write_text("name: ")
    write_model_for_client(tmp_path, "mine")
    assert chosen_model(tmp_path, "yolov5", "mine") == "mine"
    write_model_for_client(tmp_path, "two")
    with pytest.raises(StartError, match="mine.*two"):
        chosen_model(tmp_path, "yolov5")
