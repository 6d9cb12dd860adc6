"""The article's three requests, in the bytes that its notebook sends."""

from __future__ import annotations

import base64
import json
from typing import Any

import boto3
import botocore.config

from sm.settings import HERE

JSON = "application/json"
TEXT = "The world has [MASK] people."
PICTURES = {
    "resnet": HERE / "clients" / "resnet" / "sample" / "coffee.jpg",
    "yolov5": HERE / "clients" / "yolov5" / "sample" / "collage.jpg",
}


def picture(model: str) -> str:
    """A JPEG in base64."""
    return base64.b64encode(PICTURES[model].read_bytes()).decode()


def payload(model: str) -> dict[str, str]:
    return {"text": TEXT} if model == "bert_base" else {"img": picture(model)}


def request(model: str) -> str:
    """The body, made as the notebook makes it."""
    return json.dumps({"modelname": model, "payload": payload(model)})


def runtime(url: str) -> Any:
    """A real boto3 client of a box in the place of an endpoint."""
    return boto3.client(
        "sagemaker-runtime",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=botocore.config.Config(retries={"max_attempts": 1}),
    )
