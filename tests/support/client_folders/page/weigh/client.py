"""A client whose payload is any file."""

from __future__ import annotations

from pydantic import Field

from sm.client import Base64Bytes, Client, Payload


class AnyFile(Payload):
    main_field = "content"
    content_types = ("*/*",)

    content: Base64Bytes = Field(description="The file.")


class Weigh(Client):
    """How many bytes a file has."""

    payload = AnyFile

    def inference(self, payload: AnyFile) -> dict[str, object]:
        return {"bytes": len(payload.content)}
