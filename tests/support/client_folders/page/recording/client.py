"""A client for audio, so that the page must accept bytes that are not picture."""

from __future__ import annotations

from pydantic import Field

from sm.client import Base64Bytes, Classes, Client, Payload


class Recording(Payload):
    main_field = "audio"
    content_types = ("audio/wav", "audio/ogg")

    audio: Base64Bytes = Field(description="The recording.")


class Listen(Client):
    """How many bytes of each kind a recording has."""

    payload = Recording
    result = Classes(items="kinds", label="kind", score="count")

    def inference(self, payload: Recording) -> dict[str, object]:
        zeros = payload.audio.count(0)
        counts = {"silent": zeros, "loud": len(payload.audio) - zeros}
        return {"kinds": [{"kind": kind, "count": count} for kind, count in counts.items()]}
