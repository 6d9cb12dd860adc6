"""Text to text with flan-t5-small: the whole answer at once, or streamed in parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import Field, StringConstraints
from tokenizers import Tokenizer

from sm.client import Client, Parameters, Text, TextPayload
from sm.errors import WrongPayload

#: Word pieces of a prompt that the model takes.
MAX_TOKENS = 512
#: A longer text is refused before it is tokenized.
MAX_CHARACTERS = 16_384


class Options(Parameters):
    max_tokens: int = Field(
        default=64, ge=1, le=256, description="The most word pieces of the answer; a longer one is cut."
    )


class Prompt(TextPayload):
    """A task and a text: ``translate English to German: The house is wonderful.``"""

    text: Annotated[str, StringConstraints(pattern=r"\S", max_length=MAX_CHARACTERS)] = Field(
        description="The task, a colon, and the text."
    )
    parameters: Options = Field(default_factory=Options)


class T5Translate(Client):
    """Answers a prompt, for example with a translation; in parts if the caller asks for a stream."""

    payload = Prompt
    result = Text(text="translation")
    models = ("t5_translate",)

    def setup(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(self.repository / "t5_translate" / "tokenizer.json"))

    def stream(self, payload: Prompt) -> Iterator[str]:
        """Yield the parts of the translation as the model generates them; joined they are the whole."""
        count = len(self.tokenizer.encode(payload.text).ids)
        if count > MAX_TOKENS:
            raise WrongPayload(
                f"payload.text: is {count} word pieces long, the model takes {MAX_TOKENS}",
                field="payload.text",
            )
        inputs = {
            "text": np.array([payload.text.encode()], dtype=object),
            "max_tokens": np.array([payload.parameters.max_tokens], np.int32),
        }
        for answer in self.triton.stream("t5_translate", inputs, version=payload.version):
            yield answer["token"][0].decode()

    def inference(self, payload: Prompt) -> dict[str, str]:
        return {"translation": "".join(self.stream(payload))}
