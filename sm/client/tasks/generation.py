"""Text to text: translations, summaries and the like, generated token by token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import Field

from sm.client.base import Array, TensorMetadata
from sm.client.payloads import Parameters
from sm.client.results import Text
from sm.client.tasks.text import ATTENTION, DTYPES, TaskText, TextOptions, TextTask
from sm.client.tensor_roles import UnsuitableModel, find_output, format_tensors

#: Inputs of the decoder, as optimum exports it; a model without padding takes no mask.
IDS, HIDDEN, MASK = "input_ids", "encoder_hidden_states", "encoder_attention_mask"
#: A character of which the tokens so far have not all bytes.
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Generation(TextOptions):
    """The tokens at which an answer begins and ends; those of T5 by default."""

    start: int = Field(default=0, ge=0)
    end: tuple[int, ...] = (1,)


class Length(Parameters):
    """How long the answer may be."""

    max_tokens: int = Field(
        default=128, ge=1, le=512, description="Tokens of the answer; then it is cut off."
    )


class Prompt(TaskText):
    """A text, with what the model expects before it: ``translate English to German: …`` for T5."""

    parameters: Length = Field(default_factory=Length)


class TextToText(TextTask):
    """``{"text"}``, or its parts if the caller asks for a stream. Greedy: always the likeliest token.

    Serves an encoder and, as a second model called ``…_decoder``, a decoder that takes the whole answer so
    far, as optimum exports them: ``encoder_model.onnx`` and ``decoder_model.onnx``.
    """

    options = Generation
    payload = Prompt
    result = Text()

    @property
    def decoder(self) -> str:
        """The model that generates."""
        return f"{self.model}_decoder"

    def required_models(self) -> tuple[str, ...]:
        return self.model, self.decoder

    def find_output(self) -> TensorMetadata:
        decoder = self.triton.metadata(self.decoder)
        names = decoder.inputs.keys()
        if not {IDS, HIDDEN} <= names <= {IDS, HIDDEN, MASK} or decoder.inputs[IDS].datatype not in DTYPES:
            raise UnsuitableModel(
                f"{self.decoder!r} takes {format_tensors(decoder.inputs.values())}: {IDS}, {HIDDEN} and "
                f"{MASK} are expected, as of optimum's decoder_model.onnx, which has no cache."
            )
        self.takes_mask, self.dtype = MASK in names, DTYPES[decoder.inputs[IDS].datatype]
        find_output(decoder, 2, ("logits",))
        return find_output(self.metadata, 2, ("last_hidden_state",))

    def takes_batches(self) -> bool:
        return False  # answers end at different times

    def postprocess(self, outputs: Any, payload: Any) -> Any:
        raise NotImplementedError  # an answer takes several calls

    def inference(self, payload: Any) -> dict[str, str]:
        return {"text": "".join(self.stream(payload))}

    def stream(self, payload: Any) -> Iterator[str]:
        """Yield the parts of the answer as they are generated; joined they are the whole."""
        tokens: list[int] = []
        sent = ""
        for token in self.generate(payload):
            tokens.append(token)
            # All tokens: the text of one depends on those before it.
            text = self.tokenizer.decode(tokens)
            if len(text) > len(sent) and not text.endswith(INCOMPLETE):
                yield text[len(sent) :]
                sent = text

    def generate(self, payload: Any) -> Iterator[int]:
        """Yield the tokens of the answer, until one that ends it or as many as the caller asked for."""
        inputs = self.preprocess_batch([payload])
        hidden = self.triton.infer(self.model, inputs, outputs=[self.output.name])[self.output.name]
        fixed: dict[str, Array] = {HIDDEN: hidden}
        if self.takes_mask:
            mask = next((inputs[name] for name in ATTENTION if name in inputs), np.ones(hidden.shape[:2]))
            fixed[MASK] = mask.astype(self.dtype)
        tokens = [self.settings.start]
        for _ in range(payload.parameters.max_tokens):
            ids = np.array([tokens], self.dtype)
            logits = self.triton.infer(self.decoder, {IDS: ids, **fixed}, outputs=["logits"])["logits"]
            token = int(logits[0, -1].argmax())
            if token in self.settings.end:
                return
            yield token
            tokens.append(token)
