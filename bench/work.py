"""The work of a request apart from serving it, as an ordinary service implements it.

Every contestant that runs its models in process calls these, and so does the bare loop: they differ in
their server alone. It imports nothing of the box, since contestants have environments of their own.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[Any]
Outputs = dict[str, Array]
Run = Callable[[Mapping[str, Array]], Outputs]
#: The mean of ImageNet's pixels in BGR, as Keras' ResNet-50 wants it.
MEAN = np.array([103.939, 116.779, 123.68], np.float32)
SIDE, SHORT, INPUT, GREY = 224, 256, 640, 114
CONFIDENCE, OVERLAP, TOP_CLASSES, TOP_WORDS = 0.5, 0.45, 3, 5


class Model:
    """A graph on ONNX Runtime, or, with the regime ``instant``, its outputs for the sample at once.

    ``run`` is safe to be called by several threads.
    """

    def __init__(self, name: str, files: Path, regime: str, threads: int = 1) -> None:
        self.run: Run
        if regime == "instant":
            with np.load(files / "outputs" / f"{name}.npz") as recorded:
                outputs = dict(recorded)
            self.run = lambda _inputs: outputs
        else:
            self.run = runner(files / "models" / name / "model.onnx", threads)


def runner(graph: Path, threads: int) -> Run:
    """Open a session whose ``threads`` sleep while there is nothing to do, as in the box."""
    if os.environ.get("BENCH_ENGINE") == "openvino":
        return openvino_runner(graph, threads)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def openvino_runner(graph: Path, threads: int) -> Run:
    """Compile the graph for bf16: for one picture at a time, or for texts of any length."""
    import openvino

    core = openvino.Core()
    model = core.read_model(str(graph))
    shapes = {value.any_name: [*value.partial_shape] for value in model.inputs}
    if not any(size.is_dynamic for shape in shapes.values() for size in shape[1:]):
        model.reshape({name: [1, *shape[1:]] for name, shape in shapes.items()})
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_PRECISION_HINT": "bf16",
    }
    compiled = core.compile_model(model, "CPU", settings)
    places = {name: place for place, value in enumerate(compiled.outputs) for name in value.names}

    def run(inputs: Mapping[str, Array]) -> Outputs:
        request = compiled.create_infer_request()
        request.infer(dict(inputs), share_inputs=True)
        # Their memory is the request's.
        return {name: request.get_output_tensor(place).data.copy() for name, place in places.items()}

    return run


class Resnet:
    """A picture's bytes to its three likeliest classes."""

    def __init__(self, files: Path, regime: str) -> None:
        self.model = Model("resnet", files, regime)
        self.labels = (files / "models" / "resnet" / "labels.txt").read_text().splitlines()

    def __call__(self, content: bytes) -> list[dict[str, Any]]:
        return self.postprocess(self.model.run(self.preprocess(content)))

    def preprocess(self, content: bytes) -> Outputs:
        """``input``, float32 [1, 3, 224, 224]."""
        # As services usually treat photographs: turned upright as EXIF says, resized with OpenCV's default.
        is_photo = os.environ.get("BENCH_PICTURES") == "photos"
        pixels = decode_upright(content) if is_photo else decode(content)
        method = cv2.INTER_LINEAR if is_photo else cv2.INTER_AREA
        height, width = pixels.shape[:2]
        ratio = SHORT / min(height, width)
        resized = cv2.resize(pixels, (round(width * ratio), round(height * ratio)), interpolation=method)
        top, left = (resized.shape[0] - SIDE) // 2, (resized.shape[1] - SIDE) // 2
        square = resized[top : top + SIDE, left : left + SIDE, ::-1].astype(np.float32) - MEAN
        return {"input": np.ascontiguousarray(square.transpose(2, 0, 1)[None])}

    def postprocess(self, outputs: Mapping[str, Array]) -> list[dict[str, Any]]:
        scores = outputs["probs"][0]
        best = np.argsort(-scores)[:TOP_CLASSES]
        return [{"label": self.labels[index], "score": float(scores[index])} for index in best]


class Yolov5:
    """A picture's bytes to the objects in it, their boxes in its own pixels."""

    def __init__(self, files: Path, regime: str) -> None:
        self.model = Model("yolov5", files, regime)
        self.labels = (files / "models" / "yolov5" / "labels.txt").read_text().splitlines()

    def __call__(self, content: bytes) -> list[dict[str, Any]]:
        inputs, place = self.preprocess(content)
        return self.postprocess(self.model.run(inputs), place)

    def preprocess(self, content: bytes) -> tuple[Outputs, tuple[float, int, int]]:
        """``images``, float32 [1, 3, 640, 640], and how it came there: ratio, left, top."""
        pixels = decode(content)
        height, width = pixels.shape[:2]
        ratio = min(INPUT / height, INPUT / width)
        size = round(width * ratio), round(height * ratio)
        left, top = (INPUT - size[0]) // 2, (INPUT - size[1]) // 2
        resized = cv2.resize(pixels, size, interpolation=cv2.INTER_LINEAR)
        square = cv2.copyMakeBorder(
            resized,
            top,
            INPUT - size[1] - top,
            left,
            INPUT - size[0] - left,
            cv2.BORDER_CONSTANT,
            value=(GREY,) * 3,
        )
        planes = np.ascontiguousarray(square.transpose(2, 0, 1))
        return {"images": planes[None].astype(np.float32) / np.float32(255)}, (ratio, left, top)

    def postprocess(
        self, outputs: Mapping[str, Array], place: tuple[float, int, int]
    ) -> list[dict[str, Any]]:
        rows = outputs["output0"][0]
        rows = rows[rows[:, 4] > CONFIDENCE]
        scores = rows[:, 5:] * rows[:, 4:5]
        classes = scores.argmax(axis=1)
        best = scores[np.arange(len(rows)), classes]
        corners = rows[:, :2] - rows[:, 2:4] / 2
        boxes = np.concatenate([corners, rows[:, 2:4]], axis=1)
        kept = np.asarray(
            cv2.dnn.NMSBoxesBatched(boxes.tolist(), best.tolist(), classes.tolist(), CONFIDENCE, OVERLAP)
        )
        ratio, left, top = place
        return [
            {
                "label": self.labels[classes[index]],
                "score": float(best[index]),
                "box": ((boxes[index] - (left, top, 0, 0)) / ratio).tolist(),
            }
            for index in kept.ravel()
        ]


class BertBase:
    """A text with ``[MASK]`` in it to the five likeliest sentences."""

    def __init__(self, files: Path, regime: str) -> None:
        from tokenizers import Tokenizer

        self.model = Model("bert_base", files, regime)
        self.tokenizer = Tokenizer.from_file(str(files / "models" / "bert_base" / "tokenizer.json"))
        self.mask = self.tokenizer.token_to_id("[MASK]")

    def __call__(self, content: bytes) -> list[dict[str, Any]]:
        text = content.decode()
        inputs = self.preprocess(text)
        return self.postprocess(self.model.run(inputs), inputs, text)

    def preprocess(self, text: str) -> Outputs:
        """Return the three inputs, int64 [1, length]."""
        encoding = self.tokenizer.encode(text)
        parts = {
            "input_ids": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
        }
        return {name: np.array([values], np.int64) for name, values in parts.items()}

    def postprocess(
        self, outputs: Mapping[str, Array], inputs: Mapping[str, Array], text: str
    ) -> list[dict[str, Any]]:
        place = int(np.flatnonzero(inputs["input_ids"][0] == self.mask)[0])
        logits = outputs["logits"][0, place]
        powers = np.exp(logits - logits.max())
        best = np.argpartition(-logits, TOP_WORDS)[:TOP_WORDS]
        best = best[np.argsort(-logits[best])]
        total = powers.sum()
        return [
            {
                "token": text.replace("[MASK]", self.tokenizer.id_to_token(int(index)) or "", 1),
                "score": float(powers[index] / total),
            }
            for index in best
        ]


Work = Resnet | Yolov5 | BertBase
WORKS: dict[str, Callable[[Path, str], Work]] = {"resnet": Resnet, "yolov5": Yolov5, "bert_base": BertBase}


def work(model: str) -> Work:
    """``bytes -> result`` of a model, with the files and in the regime that the environment says.

    A service calls it once for each model in each process; the result is JSON-serialisable.
    """
    # OpenCV's own threads would fight with the processes for the same cores.
    cv2.setNumThreads(1)
    return WORKS[model](Path(os.environ["BENCH_FILES"]), os.environ["BENCH_REGIME"])


def decode(content: bytes) -> NDArray[np.uint8]:
    """RGB uint8 [height, width, 3]."""
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def decode_upright(content: bytes) -> NDArray[np.uint8]:
    """RGB uint8 [height, width, 3], by OpenCV, which reads EXIF's orientation."""
    pixels = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    return np.asarray(pixels[..., ::-1])
