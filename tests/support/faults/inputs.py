"""Requests whose right answers are known: pictures, texts and numbers in every form of a body."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any
from urllib.parse import urlencode

import numpy as np
import requests
from PIL import Image, ImageOps

from sm.commands.golden import differences
from sm.settings import HERE
from tests.support.hostile_pictures import encode
from tests.support.load import dispatch_body

JSON, LINES = "application/json", "application/jsonlines"
BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size={}"
DEMO_MODELS = ("resnet", "yolov5", "bert_base")
PICTURES = tuple(
    HERE / "clients" / name
    for name in ("resnet/sample/coffee.jpg", "resnet/sample/cat.png", "yolov5/sample/collage.jpg")
)
PICTURE_SIZE = (320, 240)
#: With this, ``yolov5`` finds something in every picture, so that no two answers are alike.
LOW_CONFIDENCE = 0.1
TEXTS = (
    "The world has [MASK] people.",
    "Paris is the [MASK] of France.",
    "She drank a cup of [MASK] in the morning.",
    "The [MASK] barked at the stranger all night.",
    "He plays the [MASK] in a famous orchestra.",
    "In winter the lake is covered with [MASK].",
    "The doctor works in a [MASK].",
    "My favourite colour is [MASK].",
)
GOLDEN_TIMEOUT_S = 60.0  # for one answer of an idle box, on a busy machine


@dataclass(frozen=True)
class Sample:
    """One request, and what its answer must be (``None`` until :func:`with_golden_answers` has asked)."""

    name: str
    model: str
    path: str
    content_type: str
    body: bytes
    golden: Any = None

    def differences(self, answer: bytes) -> list[str]:
        """Return where an answer differs from the golden one, or that it is not a JSON.

        Failed records of a list or of JSON lines are ignored: see :meth:`failed_records`.
        """
        try:
            found = self.parse(answer)
        except ValueError:
            return [f"no JSON: {answer[:80]!r}"]
        places = failed_indices(found)
        if not places:
            return list(differences(found, self.golden))
        return list(differences(without_records(found, places), without_records(self.golden, places)))

    def failed_records(self, answer: bytes) -> list[str]:
        """Return the error codes of an answer's failed records."""
        found = self.parse(answer)
        listed = records(found)
        return [listed[place]["code"] for place in failed_indices(found)]

    def parse(self, answer: bytes) -> Any:
        if self.content_type == LINES:
            return [json.loads(line) for line in answer.splitlines()]
        found = json.loads(answer)
        if isinstance(found, dict):
            found.pop("id", None)  # differs from request to request
        return found


def records(answer: Any) -> list[Any]:
    """Return an answer's records; empty if the request had only one, outside a list."""
    found = answer.get("result") if isinstance(answer, dict) else answer
    return found if isinstance(found, list) else []


def failed_indices(answer: Any) -> list[int]:
    return [
        place
        for place, record in enumerate(records(answer))
        if isinstance(record, dict) and {"error", "code"} <= set(record)
    ]


def without_records(answer: Any, places: list[int]) -> list[Any]:
    return [record for place, record in enumerate(records(answer)) if place not in places]


def pictures(count: int) -> list[bytes]:
    """Return JPEGs: crops of the clients' sample pictures, some mirrored or grey.

    All have one size. ``yolov5`` answers with the picture's size, so other sizes would hide mixed-up boxes.
    """
    encoded = []
    for number in range(count):
        with Image.open(PICTURES[number % len(PICTURES)]) as opened:
            whole = opened.convert("RGB")
        round_number = number // len(PICTURES)
        width, height = whole.size
        left, top = width * round_number // 16, height * (round_number % 2) // 12
        picture = whole.crop((left, top, left + width * 3 // 4, top + height * 5 // 6)).resize(PICTURE_SIZE)
        if round_number % 2:
            picture = ImageOps.mirror(picture)
        if round_number % 3 == 2:
            picture = ImageOps.grayscale(picture).convert("RGB")
        encoded.append(encode(picture, "JPEG", quality=85))
    return encoded


def dispatched(name: str, model: str, payload: Any, **members: Any) -> Sample:
    """Return a request that names its model in its JSON."""
    body = dispatch_body(model, payload, **members)
    return Sample(f"{name} JSON", model, "/invocations", JSON, body)


def raw(name: str, model: str, content_type: str, body: bytes, **parameters: Any) -> Sample:
    """Return a request that names its model in its query."""
    query = urlencode({"modelname": model, **parameters})
    return Sample(f"{name} raw", model, f"/invocations?{query}", content_type, body)


def demo_samples(count: int = 8) -> Iterator[Sample]:
    """Yield requests for the three demo models: ``count`` pictures and texts, in alternating forms."""
    for number, picture in enumerate(pictures(count)):
        encoded = {"image": base64.b64encode(picture).decode()}
        for model, parameters in (("resnet", {"top": 5}), ("yolov5", {"confidence": LOW_CONFIDENCE})):
            name = f"{model} picture {number}"
            if number % 2:
                yield raw(name, model, "image/jpeg", picture, **parameters)
            else:
                yield dispatched(name, model, encoded, parameters=parameters)
        if number < 2:
            yield raw(f"resnet picture {number} v2 binary", "resnet", *v2_binary(picture))
    for number, text in enumerate(TEXTS[:count]):
        name = f"bert_base text {number}"
        if number % 2:
            yield raw(name, "bert_base", "text/plain", text.encode())
        else:
            yield dispatched(name, "bert_base", {"text": text})
    for number in range(2):
        payloads = [{"text": text} for text in TEXTS[number * 2 : number * 2 + 3]]
        lines = b"".join(dispatch_body("bert_base", payload) + b"\n" for payload in payloads)
        yield raw(f"bert_base lines {number}", "bert_base", LINES, lines)
        yield dispatched(f"bert_base list {number}", "bert_base", payloads[::-1])


def echo_samples(model: str, count: int = 32) -> Iterator[Sample]:
    """Yield requests for a model that returns its numbers, so that each answer shows its request."""
    for number in range(count):
        yield v2_numbers(model, [float(number * 1000 + place) for place in range(4)])


def v2_numbers(model: str, numbers: list[float]) -> Sample:
    """Return a v2 request for a model that takes a row of numbers."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(numbers)], "data": numbers}
    return raw(f"{model} {numbers[0]:g}", model, JSON, json.dumps({"inputs": [tensor]}).encode())


def v2_binary(picture: bytes) -> tuple[str, bytes]:
    """Return content type and body of a binary v2 request for ``resnet``'s logits."""
    with Image.open(io.BytesIO(picture)) as opened:
        pixels = np.asarray(opened.convert("RGB").resize((224, 224)), np.uint8).transpose(2, 0, 1)
    data = np.ascontiguousarray(pixels).tobytes()
    size = {"parameters": {"binary_data_size": len(data)}}
    tensor = {"name": "input", "datatype": "UINT8", "shape": [1, 3, 224, 224], **size}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": "logits"}]}).encode()
    return BINARY.format(len(head)), head + data


def with_golden_answers(samples: list[Sample], port: int) -> list[Sample]:
    """Send every sample twice to an idle box, and return the samples with their answers.

    Raises:
        AssertionError: An answer is not a 200, differs the second time, or equals another sample's answer, so that
            a check could not tell the two apart.
    """
    with_golden = []
    with requests.Session() as session:
        for sample in samples:
            for _ in range(2):
                headers, url = {"Content-Type": sample.content_type}, f"http://127.0.0.1:{port}{sample.path}"
                response = session.post(url, sample.body, headers=headers, timeout=GOLDEN_TIMEOUT_S)
                assert response.status_code == 200, f"{sample.name}: {response.text[:300]}"
                if sample.golden is None:
                    sample = replace(sample, golden=sample.parse(response.content))
                else:
                    assert not sample.differences(response.content), f"{sample.name} is not the same twice"
            with_golden.append(sample)
    for first, second in combinations(with_golden, 2):
        is_comparable = (first.content_type, first.model) == (second.content_type, second.model)
        is_alike = is_comparable and not list(differences(first.golden, second.golden))
        assert not is_alike, f"{first.name} and {second.name} have the same answer"
    return with_golden
