"""The same program in FastAPI: this box's own code for pictures, and the same network, in each worker."""

# mypy: disallow-untyped-decorators=false
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastapi import FastAPI, Request
from starlette.responses import Response

from bench.gpu.resnet50 import Network
from sm.client import ImagePayload
from sm.client.preprocessing import Preprocessing
from sm.router.answers import dumps

TOP = 3


def create() -> FastAPI:
    """Called once in each worker. The endpoints do the work at once: threads cost more than they gain on this work."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    folder = Path(os.environ["GPU_MODEL"])
    preprocessing, network = Preprocessing.read(folder / "preprocess.json"), Network(device)
    labels = (folder / "labels.txt").read_text().splitlines()
    network(np.zeros((1, 3, 224, 224), np.uint8))
    app = FastAPI()

    def answer(payload: ImagePayload) -> Response:
        pixels = payload.pixels_at_least(*preprocessing.decode_size)
        tensor = preprocessing.unscaled(pixels, payload.header.upright_size)
        scores = network(tensor[None])[0]
        best = np.argsort(-scores, kind="stable")[:TOP].tolist()
        rows: list[Any] = [f"{scores[index]:f}:{index}:{index}:{labels[index]}" for index in best]
        return Response(dumps({"result": rows}), media_type="application/json")

    @app.get("/ping")
    async def ping() -> str:
        return "ok"

    @app.post("/resnet")
    async def of_json(payload: ImagePayload) -> Response:
        return answer(payload)

    @app.post("/resnet/raw")
    async def of_body(request: Request) -> Response:
        return answer(ImagePayload.model_construct(image=await request.body()))

    return app
