"""The reference design's service: Flask, the standard library's base64, Pillow, a gRPC client a request.

Tensors travel as bytes of the message. ``BENCH_TRITON`` is Triton's address, ``BENCH_FILES`` what all share.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flask import Flask, Response, jsonify, request
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Tokenizer
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput

Array = NDArray[Any]
FILES, TRITON = Path(os.environ["BENCH_FILES"]) / "models", os.environ["BENCH_TRITON"]
MEAN = np.array([103.939, 116.779, 123.68], np.float32)
TYPES = {"float32": "FP32", "int64": "INT64"}
SIDE, INPUT, GREY = 224, 640, (114, 114, 114)
CONFIDENCE, OVERLAP, TOP_CLASSES, TOP_WORDS = 0.5, 0.45, 3, 5

app = Flask(__name__)
tokenizer = Tokenizer.from_file(str(FILES / "bert_base" / "tokenizer.json"))
resnet_labels = (FILES / "resnet" / "labels.txt").read_text().splitlines()
yolov5_labels = (FILES / "yolov5" / "labels.txt").read_text().splitlines()


@app.get("/ping")
def ping() -> Response:
    with InferenceServerClient(TRITON) as client:
        return Response(status=200 if client.is_server_ready() else 503)


@app.post("/invocations")
def invocations() -> Response:
    body = request.get_json()
    result = CLIENTS[body["modelname"]](body["payload"])
    return jsonify({"modelname": body["modelname"], "result": result})


def infer(model: str, inputs: Mapping[str, Array], output: str, classes: int = 0) -> Array:
    """Return one output of a model for a batch of one."""
    tensors = []
    for name, array in inputs.items():
        tensor = InferInput(name, list(array.shape), TYPES[array.dtype.name])
        tensors.append(tensor.set_data_from_numpy(array))
    with InferenceServerClient(TRITON) as client:
        answer = client.infer(model, tensors, outputs=[InferRequestedOutput(output, classes)])
    values: Array = answer.as_numpy(output)[0]
    return values


def picture(payload: Mapping[str, str]) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(payload["image"]))).convert("RGB")


def resnet(payload: Mapping[str, str]) -> list[str]:
    pixels = np.array(picture(payload).resize((SIDE, SIDE)))[..., ::-1].astype(np.float32) - MEAN
    rows = infer("resnet", {"input": pixels.transpose(2, 0, 1)[None]}, "logits", TOP_CLASSES)
    answer = []
    for row in rows:
        score, index = row.decode().split(":")[:2]
        answer.append(f"{score}:{index}:{resnet_labels[int(index)]}")
    return answer


def yolov5(payload: Mapping[str, str]) -> list[dict[str, Any]]:
    image = picture(payload)
    ratio = min(INPUT / image.width, INPUT / image.height)
    size = round(image.width * ratio), round(image.height * ratio)
    left, top = (INPUT - size[0]) // 2, (INPUT - size[1]) // 2
    square = Image.new("RGB", (INPUT, INPUT), GREY)
    square.paste(image.resize(size), (left, top))
    planes = np.ascontiguousarray(np.array(square).transpose(2, 0, 1))
    rows = infer("yolov5", {"images": planes[None].astype(np.float32) / np.float32(255)}, "output0")
    rows = rows[rows[:, 4] > CONFIDENCE]
    scores = rows[:, 5:].max(axis=1) * rows[:, 4]
    return [
        {
            "label": yolov5_labels[int(rows[index, 5:].argmax())],
            "score": float(scores[index]),
            "box": ((rows[index, :4] - (left, top, 0, 0)) / ratio).tolist(),
        }
        for index in suppress_overlaps(rows, scores)
        if scores[index] > CONFIDENCE
    ]


def suppress_overlaps(rows: Array, scores: Array) -> list[int]:
    """Return the rows that stay, best first: none overlaps a better one."""
    x1, y1 = rows[:, 0] - rows[:, 2] / 2, rows[:, 1] - rows[:, 3] / 2
    x2, y2 = x1 + rows[:, 2], y1 + rows[:, 3]
    areas, order, kept = rows[:, 2] * rows[:, 3], np.argsort(-scores), []
    while order.size:
        best, others = order[0], order[1:]
        kept.append(int(best))
        width = np.minimum(x2[best], x2[others]) - np.maximum(x1[best], x1[others])
        height = np.minimum(y2[best], y2[others]) - np.maximum(y1[best], y1[others])
        common = width.clip(0) * height.clip(0)
        order = others[common / (areas[best] + areas[others] - common) <= OVERLAP]
    return kept


def bert_base(payload: Mapping[str, str]) -> list[dict[str, Any]]:
    encoding = tokenizer.encode(payload["text"])
    parts = {
        "input_ids": encoding.ids,
        "attention_mask": encoding.attention_mask,
        "token_type_ids": encoding.type_ids,
    }
    inputs = {name: np.array([values], np.int64) for name, values in parts.items()}
    logits = infer("bert_base", inputs, "logits")[encoding.tokens.index("[MASK]")]
    powers = np.exp(logits - logits.max())
    total, best = powers.sum(), np.argpartition(-logits, TOP_WORDS)[:TOP_WORDS]
    return [
        {
            "token": payload["text"].replace("[MASK]", tokenizer.id_to_token(int(index)) or "", 1),
            "score": float(powers[index] / total),
        }
        for index in best[np.argsort(-logits[best])]
    ]


CLIENTS = {"resnet": resnet, "yolov5": yolov5, "bert_base": bert_base}
