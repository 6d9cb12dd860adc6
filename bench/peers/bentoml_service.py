"""Three models behind BentoML: an endpoint for JSON and one for the content itself, each."""

# mypy: disallow-untyped-decorators=false
from __future__ import annotations

import os
from base64 import b64decode
from typing import Any

import bentoml

from bench.work import work

Result = list[dict[str, Any]]


@bentoml.service(
    workers=len(os.sched_getaffinity(0)),
    traffic={"timeout": 120},
    # A trace that nobody collects would cost two fifths of the requests a second.
    tracing={"excluded_urls": ".*"},
    metrics={"enabled": False},
    logging={"access": {"enabled": False}},
)
class Service:
    def __init__(self) -> None:
        self.answer = {model: work(model) for model in ("resnet", "yolov5", "bert_base")}

    @bentoml.api
    async def resnet(self, image: str) -> Result:
        return self.answer["resnet"](b64decode(image))

    @bentoml.api(route="/resnet/raw")
    async def resnet_raw(self, image: bytes, /) -> Result:
        return self.answer["resnet"](image)

    @bentoml.api
    async def yolov5(self, image: str) -> Result:
        return self.answer["yolov5"](b64decode(image))

    @bentoml.api(route="/yolov5/raw")
    async def yolov5_raw(self, image: bytes, /) -> Result:
        return self.answer["yolov5"](image)

    @bentoml.api
    async def bert_base(self, text: str) -> Result:
        return self.answer["bert_base"](text.encode())

    @bentoml.api(route="/bert_base/raw")
    async def bert_base_raw(self, text: bytes, /) -> Result:
        return self.answer["bert_base"](text)
