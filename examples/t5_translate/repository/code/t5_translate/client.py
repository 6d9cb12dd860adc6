"""Text to text: flan-t5-small, whole or token by token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import Field, StringConstraints
from tokenizers import Tokenizer

from sm.client import Client, Parameters, Text, TextPayload
from sm.errors import WrongPayload

#: Word pieces that the model takes.
LONGEST = 512
#: A text of more characters is refused uncounted.
CHARACTERS = 16_384


class Options(Parameters):
    max_tokens: int = Field(default=64, ge=1, le=256, description="Where a longer answer is cut.")


class Prompt(TextPayload):
    """What to do and with what: ``translate English to German: The house is wonderful.``"""

    text: Annotated[str, StringConstraints(pattern=r"\S", max_length=CHARACTERS)] = Field(
        description="What to do, a colon, and the text."
    )
    parameters: Options = Field(default_factory=Options)


class T5Translate(Client):
    """Writes what is asked for: a translation, streamed in word pieces to who wants it so."""

    payload = Prompt
    result = Text(text="translation")
    models = ("t5_translate",)

    def setup(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(self.repository / "t5_translate" / "tokenizer.json"))

    def stream(self, payload: Prompt) -> Iterator[str]:
        """The parts of the translation, as the model makes them; joined they are the whole."""
        count = len(self.tokenizer.encode(payload.text).ids)
        if count > LONGEST:
            raise WrongPayload(
                f"payload.text: is {count} word pieces long, the model takes {LONGEST}", field="payload.text"
            )
        inputs = {
            "text": np.array([payload.text.encode()], dtype=object),
            "max_tokens": np.array([payload.parameters.max_tokens], np.int32),
        }
        for answer in self.triton.stream("t5_translate", inputs, version=payload.version):
            yield answer["token"][0].decode()

    def inference(self, payload: Prompt) -> dict[str, str]:
        return {"translation": "".join(self.stream(payload))}
