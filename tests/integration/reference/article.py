"""The three requests of the article's notebook, byte for byte."""

from __future__ import annotations

import base64
import json

from sm.settings import HERE

JSON = "application/json"
TEXT = "The world has [MASK] people."
PICTURES = {
    "resnet": HERE / "clients" / "resnet" / "sample" / "coffee.jpg",
    "yolov5": HERE / "clients" / "yolov5" / "sample" / "collage.jpg",
}


def picture(model: str) -> str:
    """Return a model's sample JPEG in base64."""
    return base64.b64encode(PICTURES[model].read_bytes()).decode()


def payload(model: str) -> dict[str, str]:
    return {"text": TEXT} if model == "bert_base" else {"img": picture(model)}


def request(model: str) -> str:
    """Return the body of a request, made as the notebook makes it."""
    return json.dumps({"modelname": model, "payload": payload(model)})
