"""Three models behind FastAPI: an endpoint for JSON and one for the content itself, each."""

# mypy: disallow-untyped-decorators=false, disallow-subclassing-any=false
from __future__ import annotations

from base64 import b64decode
from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel

from bench.work import work

Result = list[dict[str, Any]]


class Picture(BaseModel):
    """``image``: base64 of a JPEG, PNG or WebP."""

    image: str


class Text(BaseModel):
    """``text`` with ``[MASK]`` in it."""

    text: str


def create() -> FastAPI:
    """Called once in each worker."""
    app = FastAPI()

    @app.get("/ping")
    async def ping() -> str:
        return "ok"

    for model in ("resnet", "yolov5"):
        pictures(app, model)
    texts(app, "bert_base")
    return app


def pictures(app: FastAPI, model: str) -> None:
    answer = work(model)

    @app.post(f"/{model}")
    async def of_json(picture: Picture) -> Result:
        return answer(b64decode(picture.image))

    @app.post(f"/{model}/raw")
    async def of_body(request: Request) -> Result:
        return answer(await request.body())


def texts(app: FastAPI, model: str) -> None:
    answer = work(model)

    @app.post(f"/{model}")
    async def of_json(text: Text) -> Result:
        return answer(text.text.encode())

    @app.post(f"/{model}/raw")
    async def of_body(request: Request) -> Result:
        return answer(await request.body())
