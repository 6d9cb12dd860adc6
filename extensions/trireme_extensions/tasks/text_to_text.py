"""Text to text: translations, summaries and the like, generated token by token."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from pydantic import AliasChoices, Field

from sm.client.base import Array, TensorMetadata
from sm.client.results import Text
from sm.client.tensor_roles import UnsuitableModel, find_output, format_tensors
from sm.client.texts import ATTENTION, DTYPES, TextOptions
from sm.client.texts import IDS as SOURCE
from trireme_extensions.tasks.cleanup import cleans_up
from trireme_extensions.tasks.text import TaskText, TextTask, Truncate
from trireme_extensions.tasks.token_rules import Rows, Scores, TokenChoice, TokenRules

#: Inputs of the decoder, as optimum exports it; a model without padding takes no mask.
IDS, HIDDEN, MASK = "input_ids", "encoder_hidden_states", "encoder_attention_mask"
#: A character of which the tokens so far have not all bytes.
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


#: Tokens of an answer if neither the request nor the model's files say how many, and the most of a request.
USUAL_TOKENS, MAX_TOKENS = 128, 512


class Generation(TextOptions):
    """The tokens at which an answer begins and ends; those of T5 by default. Then the rules of each token."""

    start: int = Field(default=0, ge=0)
    end: tuple[int, ...] = (1,)
    answer: Literal["generated_text", "summary_text", "translation_text"] = Field(
        default="generated_text", description="What Hugging Face's form calls the text: by the task's alias."
    )
    prefix: str = Field(default="", description="What goes before every text.")
    rules: TokenRules = Field(default_factory=TokenRules)


class Length(Truncate):
    """How long the answer may be, and the rules of its tokens by the names of ``generation_config.json``.

    What is not sent is as the model's files say.
    """

    max_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_TOKENS,
        validation_alias=AliasChoices("max_tokens", "max_new_tokens"),
        description="Tokens of the answer; then it is cut off. By default as many as the model's files say, "
        f"or {USUAL_TOKENS}.",
    )
    max_length: int | None = Field(
        default=None, ge=2, le=MAX_TOKENS + 1, description="The same, with the token before the answer."
    )
    min_length: int | None = Field(default=None, ge=0, le=MAX_TOKENS)
    min_new_tokens: int | None = Field(default=None, ge=0, le=MAX_TOKENS)
    num_beams: int | None = Field(default=None, ge=1, le=8)
    early_stopping: bool | Literal["never"] | None = None
    length_penalty: float | None = Field(default=None, ge=-100, le=100)
    repetition_penalty: float | None = Field(default=None, gt=0, le=100)
    encoder_repetition_penalty: float | None = Field(default=None, gt=0, le=100)
    no_repeat_ngram_size: int | None = Field(default=None, ge=0, le=MAX_TOKENS)
    encoder_no_repeat_ngram_size: int | None = Field(default=None, ge=0, le=MAX_TOKENS)
    do_sample: Literal[False] | None = Field(default=None, description="The likeliest answer is given.")
    num_return_sequences: int | None = Field(default=None, ge=1, le=1)

    def change(self, rules: TokenRules) -> TokenRules:
        """Return the rules with what the request asks for."""
        asked = self.model_dump(exclude_none=True, include={*TokenRules.model_fields})
        return rules.model_copy(update=asked) if asked else rules


class Prompt(TaskText):
    """A text, with what the model expects before it: ``translate English to German: …`` for T5."""

    parameters: Length = Field(default_factory=Length)


class TextToText(TextTask):
    """``{"text"}``, or its parts if the caller asks for a stream: one with ``num_beams``.

    The likeliest token is next, or with beams the likeliest answer is found, by the rules of the model's
    ``generation_config.json``.

    Serves an encoder and, as a second model called ``…_decoder``, a decoder that takes the whole answer so
    far, as optimum exports them: ``encoder_model.onnx`` and ``decoder_model.onnx``.
    """

    options = Generation
    payload = Prompt
    result = Text()

    def text_of(self, payload: Any) -> str:
        text: str = self.settings.prefix + payload.text
        return text

    def setup(self) -> None:
        super().setup()
        self.cleans_up = cleans_up(self.tokenizer)

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
        sent = text = ""
        rules = payload.parameters.change(self.settings.rules)
        if rules.num_beams > 1:  # which tokens are the answer's is known at its end
            yield self.tokenizer.decode([*self.generate(payload)])
            return
        for token in self.generate(payload):
            tokens.append(token)
            # All tokens: the text of one depends on those before it.
            text = self.tokenizer.decode(tokens)
            # The next token may remove the space before the last word.
            ready = text[: max(text.rfind(" "), 0)] if self.cleans_up else text
            if len(ready) > len(sent) and not ready.endswith(INCOMPLETE):
                yield ready[len(sent) :]
                sent = ready
        if len(text) > len(sent):
            yield text[len(sent) :]

    def generate(self, payload: Any) -> Iterator[int]:
        """Yield the tokens of the answer, until one that ends it or as many as the caller asked for."""
        inputs = self.preprocess_batch([payload])
        hidden = self.triton.infer(self.model, inputs, outputs=[self.output.name])[self.output.name]
        fixed: dict[str, Array] = {HIDDEN: hidden}
        if self.takes_mask:
            mask = next((inputs[name] for name in ATTENTION if name in inputs), np.ones(hidden.shape[:2]))
            fixed[MASK] = mask.astype(self.dtype)
        settings, rules = self.settings, payload.parameters.change(self.settings.rules)
        new_tokens = payload.parameters.max_tokens or min(rules.new_tokens() or USUAL_TOKENS, MAX_TOKENS)
        source = next(inputs[name] for name in SOURCE if name in inputs)[0].tolist()
        choice = TokenChoice(rules, settings.end, source, limit=new_tokens + 1)

        def step(rows: Rows) -> Scores:
            """Score the tokens that may follow rows of one length."""
            again = {name: np.repeat(array, len(rows), axis=0) for name, array in fixed.items()}
            asked = {IDS: np.array(rows, self.dtype), **again}
            logits = self.triton.infer(self.decoder, asked, outputs=["logits"])["logits"]
            scores: Scores = logits[:, -1].astype(np.float32)
            return scores

        if rules.num_beams > 1:
            found = choice.beams(step, settings.start)
            yield from itertools.takewhile(lambda token: token not in settings.end, found)
            return
        tokens = [settings.start]
        for _ in range(new_tokens):
            token = choice.greedy(step, tokens)
            if token in settings.end:
                return
            yield token
            tokens.append(token)
