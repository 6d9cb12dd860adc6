"""The parts that tasks of texts share, and the tasks of a whole text: classification and embeddings."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PrivateAttr, model_validator
from tokenizers import Encoding, Tokenizer

from sm.client.base import Array, TensorMetadata, Tensors
from sm.client.batches import MAX_BATCH_LENGTH
from sm.client.described import Activation, softmax
from sm.client.embeddings import EmbeddingClient, EmbeddingPayload
from sm.client.payloads import Parameters, Payload, TextPayload
from sm.client.results import Classes
from sm.client.tensor_roles import UnsuitableModel, find_output
from sm.client.texts import ATTENTION, TextClient, TextOptions
from sm.errors import StartError, TooLarge, WrongPayload
from sm.invocation import current
from trireme_extensions.tasks.task_file import (
    Classifier,
    LowerCase,
    Task,
    Top,
    ranked,
    unit_vector,
)

#: Tokens of a part beyond those that the model reads: the last ones may be others than in the whole text.
SPARE_TOKENS = 16
#: A text of more characters for each token that the model takes is not tokenized to its end.
CHARACTERS_PER_TOKEN = 8
#: Characters of a word that is kept whole. To BERT's tokenizer one of over 100 is unknown.
LONGEST_WORD = 200
#: Tokens of a request's texts that are read with several others, as a query is, counted with each of them.
MAX_SHARED_TOKENS = 2**21
#: Two texts by which is seen whether a tokenizer can join the tokens of two.
PROBE = ("one two", "three")


class Truncate(Parameters):
    """Whether a text that is too long is cut off."""

    truncate: bool | None = Field(
        default=None,
        description="Cut off a text that is too long, or refuse it; else as the model's files say.",
    )


class Truncation(Truncate):
    """The options for a text that is too long, by the names of Text Embeddings Inference."""

    truncation_direction: LowerCase[Literal["left", "right"]] | None = Field(
        default=None, description="The end that is cut off."
    )
    max_input_tokens: int | None = Field(
        default=None,
        ge=1,
        le=2**20,
        description="Tokens to read of a text at most, special ones included; what is longer is cut off.",
    )


class TaskText(TextPayload):
    """A text."""

    _encoding: Encoding | None = PrivateAttr(default=None)


def asked_for(payload: Any, name: str) -> Any:
    """Return a parameter of a record; None if the request does not say it, or the task has no such one."""
    return getattr(getattr(payload, "parameters", None), name, None)


def cut_at_space(text: str, place: int, end: str) -> str:
    """Cut off an end of a text behind a place, at a space: a part of a word may have other tokens.

    Of what has no space for long so much is kept that it is as unknown a word as the whole.
    """
    if end == "right":
        cut = text.find(" ", place, place + LONGEST_WORD)
        return text[: place + LONGEST_WORD if cut < 0 else cut]
    first = max(0, place - LONGEST_WORD)
    return text[max(first, text.rfind(" ", first, place + 1)) :]


class TextTask(TextClient, Task):
    """A client whose model reads the tokens of a text, or of a pair of texts."""

    options = TextOptions
    payload: ClassVar[type[Payload]] = TaskText
    #: The way of cutting a text that is too long, by the tokenizer's name for it.
    truncation: ClassVar[str] = "longest_first"

    def setup(self) -> None:
        super().setup()
        if self.settings.truncate:
            self.enable_truncation(self.tokenizer)
        #: Held while a text is tokenized that pairs share.
        self.sharing = threading.Lock()
        #: Held while a text is cut off, as each request may ask for another end and length.
        self.cutting = threading.Lock()

    def enable_truncation(self, tokenizer: Tokenizer, end: str = "", most: int = 0) -> None:
        """Make a tokenizer cut off what is too long; by default for the model, at the model's own end."""
        tokenizer.enable_truncation(
            most or self.max_length, strategy=self.truncation, direction=end or self.cut_end
        )

    def truncates(self, payload: Any) -> bool:
        """True if a text that is too long is cut off: the request decides, else the model's files."""
        asked = asked_for(payload, "truncate")
        if asked is None and asked_for(payload, "max_input_tokens"):
            return True
        return bool(self.settings.truncate if asked is None else asked)

    def most_tokens(self, payload: Any) -> int:
        """Return how many tokens of a text are read: as many as the model takes, or as the request asks."""
        most: int = min(asked_for(payload, "max_input_tokens") or self.max_length, self.max_length)
        return most

    def takes_batches(self) -> bool:
        """True if a text answers in a batch what it answers alone.

        Padding changes nothing where the model sees it in ``attention_mask``, and behind the text: before it,
        the text's positions would be others.
        """
        can_pad = self.padding.token is not None and not self.padding.on_left
        return can_pad and ATTENTION in self.inputs_of_text.roles.values() and super().takes_batches()

    def prepare(self, payload: Any) -> int:
        (payload._encoding,) = self.encode([payload])
        return len(payload._encoding)

    def encode(self, payloads: Sequence[Any]) -> list[Encoding]:
        """Return the texts' tokens. Raises :class:`WrongPayload` for a text longer than the model takes."""
        known: list[Any] = [getattr(payload, "_encoding", None) for payload in payloads]
        if None not in known:
            return known
        texts = [
            self.readable(text, self.end_of(payload)) if isinstance(text, str) else text
            for text, payload in zip(self.texts_of(payloads), payloads, strict=True)
        ]
        encodings: list[Encoding] = self.tokenizer.encode_batch(texts)
        for index, (payload, encoding) in enumerate(zip(payloads, encodings, strict=True)):
            # The tokenizer has cut off what overflows where task.json says so.
            most = self.most_tokens(payload)
            if len(encoding) <= most and not encoding.overflowing:
                continue
            if not self.truncates(payload):
                raise self.too_long()
            end = self.end_of(payload)
            if most < self.max_length or end != self.cut_end or not encoding.overflowing:
                encodings[index] = self.cut(texts[index], end, most)
        return encodings

    def end_of(self, payload: Any) -> str:
        """Return the end at which a text that is too long is cut off: the request's, else the model's."""
        end: str = asked_for(payload, "truncation_direction") or self.cut_end
        return end

    def readable(self, text: str, end: str) -> str:
        """Return what the model may read of a text: of a long one a part with more tokens than it takes.

        The tokens of 32,000 characters take longer than the model does.
        """
        most = CHARACTERS_PER_TOKEN * self.max_length
        if len(text) <= most:
            return text
        part = cut_at_space(text, most if end == "right" else len(text) - most, end)
        (encoding,) = self.whole.encode_batch([part], add_special_tokens=False)
        return part if len(encoding) > self.max_length + SPARE_TOKENS else text

    def cut(self, text: str | tuple[str, str], end: str, most: int) -> Encoding:
        """Return the tokens of a text, or of a pair, that has more than are read.

        Raises :class:`WrongPayload` if the special ones alone are as many.
        """
        count = 1 if isinstance(text, str) else 2
        if most < self.max_length and most < count + self.whole.num_special_tokens_to_add(count == 2):
            field = ("parameters", "max_input_tokens")
            raise WrongPayload(f"{most} tokens leave no room for a text", field=field)
        with self.cutting:
            self.enable_truncation(self.cutter, end, most)
            (encoding,) = self.cutter.encode_batch([text])
        return encoding

    def encode_pair(self, first: str, second: str, payload: Any, holder: Any, pairs: int) -> Encoding:
        """Return the tokens of a pair of texts.

        Args:
            first: The text that pairs share: its tokens are made once.
            second: The other text.
            payload: The record, which says what becomes of texts that are too long.
            holder: Keeps the tokens of the first text.
            pairs: How many there are of it.

        Raises:
            WrongPayload: The texts are longer than the model takes.
            TooLarge: The request's texts are read with too many others.
        """
        end = self.end_of(payload)
        if holder._encoding is None:
            with self.sharing:  # the list's records run at the same time
                if holder._encoding is None:
                    holder._encoding = self.share(first, end, pairs)
        if isinstance(holder._encoding, TooLarge):
            raise holder._encoding
        if self.joins:
            other = self.part_of(second, end)
            with self.cutting:
                self.enable_truncation(self.cutter, end)
                pair: Encoding = self.cutter.post_process(holder._encoding, other)
        else:
            pair = self.cut((first, second), end, self.max_length)
        if pair.overflowing and not self.truncates(payload):
            raise self.too_long()
        return pair

    def share(self, text: str, end: str, pairs: int) -> Encoding | TooLarge:
        """Return the tokens of a text of pairs, or an error if its request has too many of them."""
        encoding, invocation = self.part_of(text, end), current()
        if invocation is None:
            return encoding
        tokens = min(len(encoding), self.max_length)
        if invocation.shared_tokens + tokens * pairs > MAX_SHARED_TOKENS:
            return TooLarge(
                f"a text of {tokens:,} tokens is to be read with {pairs:,} others: such tokens, counted with "
                f"each of them, are at most {MAX_SHARED_TOKENS:,} in a request; send fewer at once",
                max_shared_tokens=MAX_SHARED_TOKENS,
            )
        invocation.shared_tokens += tokens * pairs
        return encoding

    def part_of(self, text: str, end: str) -> Encoding:
        """Return the tokens of one text of a pair: of a long one those that the model may read, and a few.

        The tokenizer would keep what it cuts off, for each pair again.
        """
        text = self.readable(text, end)
        (encoding,) = self.whole.encode_batch([text], add_special_tokens=False)
        most = self.max_length + SPARE_TOKENS
        if len(encoding) > most:
            # A token's beginning: no word that is unknown as a whole is cut.
            place = encoding.offsets[most if end == "right" else -most][0]
            text = text[:place] if end == "right" else text[place:]
            (encoding,) = self.whole.encode_batch([text], add_special_tokens=False)
        part: Encoding = encoding
        return part

    @cached_property
    def whole(self) -> Tokenizer:
        """The tokenizer without truncation."""
        tokenizer = Tokenizer.from_str(self.tokenizer.to_str())
        tokenizer.no_truncation()
        return tokenizer

    @cached_property
    def cutter(self) -> Tokenizer:
        """The tokenizer that cuts off, whatever ``truncate`` of ``task.json`` says."""
        return Tokenizer.from_str(self.tokenizer.to_str())

    @cached_property
    def joins(self) -> bool:
        """True if the tokens of two texts make those of the pair; not every tokenizer is of that kind."""
        first, second = PROBE
        joined = self.whole.post_process(self.part_of(first, "right"), self.part_of(second, "right"))
        whole = self.whole.encode(first, second)
        return bool((whole.ids, whole.type_ids) == (joined.ids, joined.type_ids))

    def too_long(self) -> WrongPayload:
        """Return the error for a text with too many tokens."""
        return self.wrong_text(
            f"is longer than the {self.max_length} tokens that the model takes; with truncate it reads the "
            "beginning"
        )

    def preprocess(self, payload: Any) -> Tensors:
        return {name: rows[0] for name, rows in self.preprocess_batch([payload]).items()}

    def preprocess_batch(self, payloads: Sequence[Any]) -> Tensors:
        encodings = self.encode(payloads)
        for payload, encoding in zip(payloads, encodings, strict=True):
            payload._encoding = encoding
        return self.pad([encoding.ids for encoding in encodings], [each.type_ids for each in encodings])


class TextClassificationOptions(TextOptions):
    """How scores become probabilities: of one label among all, or of each label by itself."""

    relevance: Activation = Field(
        default="auto", description="The same for the score of a text beside a query, as at /v1/rerank."
    )


class QueryOptions(Top, Truncation):
    """The text that each text is compared with, and how both are cut."""

    query: str | None = Field(
        default=None,
        min_length=1,
        description="What texts are to answer: the first of a pair with each. What is too long is cut off.",
    )
    _encoding: Encoding | TooLarge | None = PrivateAttr(default=None)


class ClassifiedText(TaskText):
    """A text to classify, or a pair of texts, as of a model of natural language inference."""

    text_pair: str | None = Field(default=None, description="The second text of a pair.")
    parameters: QueryOptions = Field(default_factory=QueryOptions)

    @model_validator(mode="after")
    def check_pair(self) -> ClassifiedText:
        """Refuse three texts."""
        if self.text_pair is not None and self.parameters.query is not None:
            raise ValueError("send text_pair or parameters.query, one of the two")
        return self


class TextClassification(TextTask, Classifier):
    """``[{"label", "score"}]``, the best first.

    With a ``query`` it scores pairs as ``CrossEncoder.predict`` of sentence-transformers does; a model with
    one label is also served at ``/v1/rerank``.
    """

    options = TextClassificationOptions
    payload = ClassifiedText
    result = Classes()

    @property
    def ranks(self) -> bool:
        """True if it is served at ``/v1/rerank`` too: one label, and results that are the task's own."""
        own, task = type(self), TextClassification
        is_task = own.inference is task.inference and own.postprocess is task.postprocess
        return is_task and len(self.labels) == 1

    def text_of(self, payload: Any) -> str | tuple[str, str]:
        text, pair = payload.text, payload.text_pair
        return text if pair is None else (text, pair)

    def encode(self, payloads: Sequence[Any]) -> list[Encoding]:
        if all(payload.parameters.query is None for payload in payloads):
            return super().encode(payloads)
        return [self.encode_beside(payload) for payload in payloads]

    def encode_beside(self, payload: Any) -> Encoding:
        """Return the tokens of a text beside its request's query, or of a text without one."""
        query, most = payload.parameters.query, self.settings.max_characters
        if payload._encoding is not None or query is None:
            (encoding,) = super().encode([payload])
            return encoding
        if len(query) > most:
            raise WrongPayload(f"has over {most:,} characters", field=("parameters", "query"))
        if len(query) + len(payload.text) > most:
            raise self.wrong_text(f"has over {most:,} characters")
        # The parameters are those of all texts of the request.
        pairs = payload._request.count
        return self.encode_pair(query, payload.text, payload, payload.parameters, pairs)

    def truncates(self, payload: Any) -> bool:
        asked = payload.parameters
        return (asked.query is not None and asked.truncate is None) or super().truncates(payload)

    def activation(self, payload: Any) -> Activation:
        relevance: Activation = self.settings.relevance
        with_query = payload.parameters.query is not None and relevance != "auto"
        return relevance if with_query else super().activation(payload)


#: Candidates of a request: each is a text of its own for the model.
MAX_CANDIDATES = 100


class Hypothesis(Truncate):
    """How a label becomes a sentence, and whether labels exclude each other."""

    hypothesis: str = Field(
        default="This example is {}.",
        pattern=r"\{\}",
        validation_alias=AliasChoices("hypothesis", "hypothesis_template"),
        description="{} is the label.",
    )
    multi_label: bool = Field(default=False, description="Score each label by itself.")


class Candidates(Payload):
    """A text, and the labels that it may have."""

    text: str = Field(min_length=1, examples=["My parcel has not arrived."])
    labels: list[Annotated[str, Field(min_length=1)]] = Field(
        min_length=1, max_length=MAX_CANDIDATES, examples=[["delivery", "payment"]]
    )
    parameters: Hypothesis = Field(default_factory=Hypothesis)
    #: The text's own tokens.
    _encoding: Encoding | TooLarge | None = PrivateAttr(default=None)


class ZeroShotClassification(TextTask):
    """``[{"label", "score"}]`` of the labels in the request, the best first.

    Serves a model of natural language inference: one of its labels begins with ``entail``.
    """

    payload = Candidates
    result = Classes()
    truncation = "only_first"

    def find_output(self) -> TensorMetadata:
        output = self.find_classes(1)
        names = [label.lower() for label in self.labels]
        entailed = [index for index, name in enumerate(names) if name.startswith("entail")]
        if not entailed or len(names) < 2:
            raise UnsuitableModel(f"{self.model!r} has no label that begins with entail; it has {names}.")
        self.entailment = entailed[0]
        # In transformers' pipeline the last label means contradiction, unless that is the entailment.
        contradicted = [index for index, name in enumerate(names) if name.startswith("contra")]
        self.contradiction = contradicted[0] if contradicted else (0 if self.entailment else len(names) - 1)
        return output

    def inference(self, payload: Any) -> list[dict[str, Any]]:
        """Score a sentence for each label, in one call or as many as the model's batch needs."""
        count = len(payload.labels)
        pairs = [
            self.encode_pair(payload.text, sentence, payload, payload, count)
            for sentence in self.sentences(payload)
        ]
        rows = max(1, MAX_BATCH_LENGTH // max(len(pair) for pair in pairs))
        scores = []
        for start in range(0, len(pairs), rows):  # other callers' calls go between them
            part = pairs[start : start + rows]
            inputs = self.pad([pair.ids for pair in part], [pair.type_ids for pair in part])
            outputs = self.triton.infer(self.model, inputs, outputs=[self.output.name], split=True)
            scores.append(outputs[self.output.name].reshape(len(part), -1).copy())
        return self.postprocess({self.output.name: np.concatenate(scores)}, payload)

    def sentences(self, payload: Candidates) -> Iterator[str]:
        """Yield the sentence of each label. It is made once its length is known."""
        hypothesis = payload.parameters.hypothesis
        places, most, all_characters = hypothesis.count("{}"), self.settings.max_characters, 0
        for label in payload.labels:
            characters = len(hypothesis) + places * (len(label) - len("{}"))
            all_characters += characters
            if len(payload.text) + characters > most:
                raise self.wrong_text(f"has, with a label, over {most:,} characters")
            if all_characters > most:
                field = ("payload", "labels")
                raise WrongPayload(f"in their sentences have over {most:,} characters", field=field)
            yield hypothesis.replace("{}", label)

    def takes_batches(self) -> bool:
        return False  # a record is a batch already

    def postprocess(self, outputs: Tensors, payload: Any) -> list[dict[str, Any]]:
        logits = self.logits(outputs[self.output.name].reshape(len(payload.labels), -1))
        if payload.parameters.multi_label or len(payload.labels) == 1:
            scores = softmax(logits[:, [self.contradiction, self.entailment]])[:, 1]
        else:
            scores = softmax(logits[:, self.entailment])
        return ranked(np.asarray(scores), tuple(payload.labels), len(payload.labels))


PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len", "weightedmean", "last"]
#: The arrays of the layers behind the pooling: ``<layer>.weight`` and ``<layer>.bias``.
LAYER_ARRAYS = "layers.npz"


class Layer(BaseModel):
    """A module of sentence-transformers behind the pooling."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["dense", "layernorm", "normalise"]
    #: The beginning of its arrays' names.
    name: str = ""
    activation: Literal["none", "tanh", "relu", "gelu", "sigmoid"] = "none"


class Pooling(TextOptions):
    """How the vectors of the tokens become one; several ways are joined."""

    truncate: bool = True  # as sentence-transformers does
    pooling: PoolingMode | tuple[PoolingMode, ...] = "mean"
    layers: tuple[Layer, ...] = ()
    normalise: bool = True
    prompt: str = Field(default="", description="What goes before every text.")
    prompts: dict[str, str] = Field(default={}, description="What a request may choose in its place.")
    include_prompt: bool = Field(default=True, description="Pool the vectors of the prompt's tokens too.")


class EmbeddingOptions(Truncation):
    """Options for the prompt before a text, for a text that is too long, and for its vector."""

    prompt: str | None = Field(default=None, max_length=2**15, description="What goes before the text.")
    prompt_name: str | None = Field(default=None, description="The name of one of the model's prompts.")
    normalize: bool | None = Field(
        default=None, description="Give the vector the length 1, or leave it; else as the model's files say."
    )


class Sentence(EmbeddingPayload):
    """A text, or the ids of its tokens."""

    parameters: EmbeddingOptions = Field(default_factory=EmbeddingOptions)
    _encoding: Encoding | None = PrivateAttr(default=None)
    _tokens: int = PrivateAttr(default=0)
    #: The first tokens, which are not pooled.
    _skipped: int = PrivateAttr(default=0)


class SentenceEmbeddings(TextTask, EmbeddingClient):
    """``{"embedding": [...], "tokens": n}`` of a text. Also served as OpenAI's embeddings API.

    Serves a model with an output of one vector for each text, or one for each token, which are pooled.
    """

    options = Pooling
    payload = Sentence

    def setup(self) -> None:
        super().setup()
        self.arrays: dict[str, Array] = {}
        layers = self.settings.layers
        if any(layer.name for layer in layers):
            path = self.home / LAYER_ARRAYS
            try:
                with np.load(path, allow_pickle=False) as found:
                    self.arrays = dict(found)
            except (OSError, ValueError) as error:
                raise StartError(f"{path} cannot be read: {error}") from None
        missing = [layer.name for layer in layers if layer.name and f"{layer.name}.weight" not in self.arrays]
        if missing:
            raise StartError(f"{self.home / LAYER_ARRAYS} has no weights of the layer {missing[0]!r}.")
        #: A graph with a sentence_embedding of the last layer's size has applied them.
        sizes = [len(self.arrays[f"{layer.name}.weight"]) for layer in layers if layer.name]
        is_whole = self.output.name == WHOLE_OUTPUT and self.output.shape[-1] in (-1, *sizes[-1:])
        self.layers: tuple[Layer, ...] = () if is_whole else layers
        #: True if the graph itself gives vectors of the length 1.
        self.is_unit = is_whole and any(layer.kind == "normalise" for layer in layers)

    def find_output(self) -> TensorMetadata:
        for rank, names in ((1, (WHOLE_OUTPUT,)), (2, TOKEN_OUTPUTS)):
            if set(names) & self.metadata.outputs.keys():
                try:
                    return find_output(self.metadata, rank, names)
                except UnsuitableModel:
                    continue
        try:
            return find_output(self.metadata, 2)
        except UnsuitableModel:
            return find_output(self.metadata, 1, ("pooler_output",))

    def prompt_of(self, payload: Sentence) -> str:
        """Return what goes before a text.

        Raises:
            WrongPayload: The model has no prompt of the name.
        """
        asked, prompts = payload.parameters, self.settings.prompts
        if asked.prompt is not None:
            return asked.prompt
        if asked.prompt_name is None:
            prompt: str = self.settings.prompt
            return prompt
        if asked.prompt_name not in prompts:
            problem = f"{asked.prompt_name!r} is not a prompt; there are: {', '.join(prompts) or 'none'}"
            raise WrongPayload(problem, field=("parameters", "prompt_name"))
        named: str = prompts[asked.prompt_name]
        return named

    def text_of(self, payload: Sentence) -> str:
        return self.prompt_of(payload) + payload.text

    def prepare(self, payload: Sentence) -> int:
        if not payload.token_ids:
            return super().prepare(payload)
        self.check_ids(payload.token_ids)
        return len(payload.token_ids)

    def preprocess_batch(self, payloads: Sequence[Any]) -> Tensors:
        with_text = [payload for payload in payloads if not payload.token_ids]
        encodings = iter(self.encode(with_text))
        ids = [payload.token_ids or next(encodings).ids for payload in payloads]
        for payload, record in zip(payloads, ids, strict=True):
            if payload.token_ids:
                self.check_ids(record)
            elif not self.settings.include_prompt:
                payload._skipped = min(self.prompt_tokens(payload), len(record) - 1)
            payload._tokens = len(record)
        return self.pad(ids)

    def prompt_tokens(self, payload: Sentence) -> int:
        """Return how many tokens a prompt has, without the special one behind it."""
        prompt = self.prompt_of(payload)
        if not prompt:
            return 0
        encoding = self.tokenizer.encode(prompt)
        return len(encoding) - (encoding.special_tokens_mask[-1] if encoding.ids else 0)

    def check_ids(self, ids: Sequence[int]) -> None:
        """Refuse ids that the model has no token for, and too many."""
        size, field = self.tokenizer.get_vocab_size(), ("payload", "token_ids")
        if len(ids) > self.max_length:
            raise WrongPayload(f"{len(ids)} tokens are sent, the model takes {self.max_length}", field=field)
        if max(ids) >= size:
            raise WrongPayload(f"{max(ids)} is not a token; there are {size:,}", field=field)

    def postprocess(self, outputs: Tensors, payload: Sentence) -> dict[str, object]:
        vector = self.pool(outputs[self.output.name], payload).astype(np.float32)
        asked = payload.parameters.normalize
        if asked is False and self.is_unit:
            problem = "the vectors of this model's graph have the length 1; leave it out"
            raise WrongPayload(problem, field=("parameters", "normalize"))
        for layer in self.layers:
            if asked is not False or layer is not self.layers[-1] or layer.kind != "normalise":
                vector = self.apply(layer, vector)
        normalises = self.settings.normalise if asked is None else asked
        return self.embedding(unit_vector(vector) if normalises else vector, payload._tokens)

    def pool(self, vectors: Array, payload: Sentence) -> Array:
        """Return the one vector [n] of an output [n], or of [padded, n], of which the text's rows count."""
        if len(self.output.shape) == 1:
            return vectors.reshape(-1)
        vectors = vectors.reshape(-1, vectors.shape[-1])
        vectors = vectors[self.padding.own(payload._tokens, len(vectors))]
        pooling = self.settings.pooling
        modes: tuple[PoolingMode, ...] = pooling if isinstance(pooling, tuple) else (pooling,)
        return np.concatenate([pooled(mode, vectors, payload._skipped) for mode in modes])

    def apply(self, layer: Layer, vector: Array) -> Array:
        """Apply a layer to the vector of a text, float32."""
        if layer.kind == "normalise":
            return unit_vector(vector)
        weight, bias = (
            self.arrays[f"{layer.name}.weight"],
            self.arrays.get(f"{layer.name}.bias", np.float32(0)),
        )
        if layer.kind == "layernorm":
            scaled = (vector - vector.mean()) / np.sqrt(vector.var() + np.float32(1e-5))  # PyTorch's epsilon
            return np.asarray(scaled * weight + bias, np.float32)
        return np.asarray(ACTIVATIONS[layer.activation](weight @ vector + bias), np.float32)


#: The output of a graph with all modules of sentence-transformers, and those with a vector for each token.
WHOLE_OUTPUT, TOKEN_OUTPUTS = "sentence_embedding", ("last_hidden_state", "token_embeddings")
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "none": lambda values: values,
    "tanh": np.tanh,
    "relu": lambda values: np.maximum(values, 0),
    "gelu": lambda values: np.array([value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in values]),
    "sigmoid": lambda values: 0.5 * (1 + np.tanh(0.5 * values)),
}


def pooled(mode: PoolingMode, vectors: Array, skipped: int) -> Array:
    """Pool vectors of tokens [tokens, n] to one [n], as sentence-transformers does.

    Args:
        mode: The way.
        vectors: Of all tokens of a text.
        skipped: The first tokens, which do not count; those behind them keep their weights.
    """
    counted = vectors[skipped:]
    if mode in ("cls", "last"):
        return np.asarray(counted[0 if mode == "cls" else -1])
    if mode == "max":
        return np.asarray(counted.max(axis=0))
    if mode == "weightedmean":
        weights = np.arange(skipped + 1, len(vectors) + 1, dtype=np.float32)[:, None]
        return np.asarray((counted * weights).sum(axis=0) / weights.sum())
    total = counted.sum(axis=0)
    return np.asarray(total / (len(counted) if mode == "mean" else np.sqrt(np.float32(len(counted)))))
