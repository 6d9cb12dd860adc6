"""Serve code of other systems unchanged: the article's class, and Multi Model Server's ``handle``."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from pydantic import AliasChoices, Field

from sm.client.base import Client
from sm.client.payloads import Base64Bytes, ImagePayload, Payload, TextPayload
from sm.errors import BadInput, StartError
from sm.http.messages import JSON, OCTET_STREAM
from sm.plugins.sources import PAGE
from trireme_extensions.toolkit.scripts import Context, ScriptFunctions, ToolkitClient, to_bytes

#: The first bytes of a JPEG, a PNG and a WebP.
SIGNATURES = (b"\xff\xd8", b"\x89PNG", b"RIFF")


def adapt(module: types.ModuleType) -> type[Client]:
    """Return a client for what a module has. Raises :class:`StartError` if that is not known here."""
    handle = vars(module).get("handle")
    if inspect.isfunction(handle) and len(inspect.signature(handle).parameters) == 2:
        return type("Handle", (HandleClient,), {"__doc__": handle.__doc__, "handle": staticmethod(handle)})
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == module.__name__ and "inference" in vars(value):
            return type(value.__name__, (ArticleClient,), {"__doc__": value.__doc__, "ported": value})
    raise StartError(f"it has neither handle(data, context) nor a class with inference. See {PAGE}.")


class PictureOrText(Payload):
    """A picture or a text, as the article's callers send them."""

    content_types = (*ImagePayload.content_types, *TextPayload.content_types)

    image: Base64Bytes = Field(default=b"", validation_alias=AliasChoices("image", "img"))
    text: str = ""

    @classmethod
    def fields_of_raw(cls, body: bytes) -> dict[str, Any]:
        return {"image": body} if body.startswith(SIGNATURES) else TextPayload.fields_of_raw(body)


class ArticleClient(Client):
    """Calls ``inference`` of a class with the decoded payload: a text, or a picture as OpenCV reads it."""

    payload = PictureOrText
    ported: type[Any]

    def setup(self) -> None:
        self._instance = self.ported()

    def inference(self, payload: PictureOrText) -> object:
        """Pass on the text, or the picture as BGR uint8 [height, width, 3]."""
        if payload.image:
            from sm.client.images import decode  # OpenCV, for pictures alone

            return self._instance.inference(np.ascontiguousarray(decode(payload.image)[..., ::-1]))
        if "text" not in payload.model_fields_set:
            raise BadInput("payload: send a picture as img, or a text as text", field="payload")
        return self._instance.inference(payload.text)


class HandleClient(ToolkitClient):
    """Calls ``handle`` with one request at a time, as Multi Model Server does in each of its processes."""

    handle: Callable[[Any, Context], Any]

    def read_functions(self) -> ScriptFunctions:
        return Handle(self.handle)


class Handle(ScriptFunctions):
    """Calls ``handle(data, context)`` where a toolkit script would have functions of its own."""

    def __init__(self, handle: Callable[[Any, Context], Any]) -> None:
        self._handle = handle

    def load(self, context: Context) -> Any:
        """Call it without data, with which that server lets it load its model."""
        self._handle(None, context)

    def answer(
        self,
        model: Any,  # noqa: ARG002 - ``handle`` keeps it
        body: bytes,
        content_type: str,
        accept: str,  # noqa: ARG002 - ``handle`` decides
        context: Context,
    ) -> tuple[bytes, str]:
        """Return the answer's bytes and content type."""
        answers = self._handle([{"body": body, "content_type": content_type}], context)
        if not isinstance(answers, list) or len(answers) != 1:
            raise TypeError("handle must return a list with one answer for each request")
        (answer,) = answers
        kind = "text/plain" if isinstance(answer, str) else JSON
        if isinstance(answer, bytes | bytearray | memoryview):
            kind = OCTET_STREAM
        return to_bytes(answer), context.content_type or kind
