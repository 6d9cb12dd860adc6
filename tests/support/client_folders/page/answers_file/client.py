import io
import wave
from typing import Literal

import numpy as np
from pydantic import Field

from sm.client import Client, Encoded, Parameters, TextPayload

RATE = 8000


class Options(Parameters):
    kind: Literal["audio/wav", "video/mp4", "application/pdf", "application/octet-stream"] = "audio/wav"


class Spoken(TextPayload):
    parameters: Options = Field(default_factory=Options)


def tone(seconds: float) -> bytes:
    """Return a tone that becomes louder."""
    times = np.arange(int(RATE * seconds)) / RATE
    samples = np.sin(2 * np.pi * 440 * times) * times / seconds * 32000
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(samples.astype("<i2").tobytes())
    return content.getvalue()


class AnswersFile(Client):
    """Speaks a text: a tenth of a second for each letter."""

    payload = Spoken

    def inference(self, payload: Spoken) -> Encoded:
        kind = payload.parameters.kind
        return Encoded(tone(len(payload.text) / 10) if kind == "audio/wav" else payload.text.encode(), kind)
