"""Hugging Face's form of a request, ``{"inputs", "parameters"}``, for every task.

The answer is what SageMaker's Hugging Face container sends: what the pipeline of transformers returns, as
bare JSON (``HuggingFaceHandlerService.predict`` of sagemaker-huggingface-inference-toolkit, and the classes
in transformers/pipelines). Embeddings answer as Text Embeddings Inference does: a vector for each text.
"""

# ruff: noqa: ARG002  # each task needs another part of the request

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pybase64

from sm.client.base import Client
from sm.client.embeddings import shorten
from sm.errors import WrongPayload
from sm.http.messages import OCTET_STREAM
from sm.router.forms.dispatch import ADDRESS_MEMBERS, check_types
from sm.router.forms.form import Form, Reading
from sm.router.forms.v2 import has_inputs, is_v2
from sm.router.request_types import Call
from trireme_extensions import tasks
from trireme_extensions.tasks.tabular import MAX_ROWS
from trireme_extensions.tasks.task_file import MAX_LABELS
from trireme_extensions.tasks.task_table import TASKS

Parameters = dict[str, Any]
#: The meaning of ``top_k: null``: all labels.
ALL = MAX_LABELS


#: Parameters of the pipelines' own work, which change no answer: sizes of batches, processes.
OF_WORK = ("batch_size", "num_workers")
#: Parameters of question answering that mean something to slow tokenizers only.
WITHOUT_EFFECT = ("max_question_len", "padding")
#: Parameters of transformers' tokenizers, and members that hold more of them.
OF_TOKENIZER, HOLDERS = ("truncation", "max_length", "padding"), ("tokenizer_kwargs", "tokenize_kwargs")
#: Ways to cut off one text. ``longest_first`` cuts off a pair, too.
CUTTING = {True: True, "longest_first": True, "only_first": True, False: False, "do_not_truncate": False}
PADDING = (True, False, "longest", "max_length", "do_not_pad")
#: A limit of tokens beyond every model's own.
UNLIMITED = 2**20


def wrong(name: str, problem: str) -> WrongPayload:
    """Return the error for a parameter."""
    return WrongPayload(problem, field=("parameters", name))


def read_tokenizer(parameters: Parameters) -> Parameters:
    """Return the parameters with the words of transformers' tokenizers in the words of our own tasks.

    Padding changes no answer here, and more threads or larger batches neither.
    """
    found = dict(parameters)
    for holder in HOLDERS:
        more = found.pop(holder, {})
        if not isinstance(more, dict) or more.keys() - {*OF_TOKENIZER}:
            raise wrong(holder, f"must be an object with {', '.join(OF_TOKENIZER)}")
        found = {**more, **found}
    padding, truncation = found.pop("padding", False), found.pop("truncation", None)
    if not isinstance(padding, bool | str) or padding not in PADDING:
        raise wrong("padding", "must be true, false, longest, max_length or do_not_pad")
    if "max_length" in found:
        length = found.pop("max_length")
        if type(length) is not int or not 1 <= length <= UNLIMITED:
            raise wrong("max_length", f"must be a whole number from 1 to {UNLIMITED:,}")
        # Asked for padding alone, transformers pads to it and cuts off nothing.
        if truncation is not None or not padding:
            found["max_input_tokens"] = length
    if truncation is not None:
        if not isinstance(truncation, bool | str) or truncation not in CUTTING:
            raise wrong("truncation", "must be true, false, longest_first, only_first or do_not_truncate")
        found["truncate"] = CUTTING[truncation]
        if not CUTTING[truncation]:
            found.pop("max_input_tokens", None)
    return found


class HuggingFaceForm:
    """How inputs become records, and results the answer. This one keeps both: a client of no known task."""

    #: Members beside ``inputs`` that are parameters too.
    members: frozenset[str] = frozenset()
    #: The parameters that have another default in transformers.
    defaults: Mapping[str, Any] = {}

    def read(self, inputs: Any, sent: Mapping[str, Any]) -> tuple[list[Any], Parameters]:
        """Return the records and the client's parameters. Raises :class:`WrongPayload`."""
        asked = {name: value for name, value in sent.items() if value is not None}
        for name in OF_WORK:
            number = asked.pop(name, 1)
            if type(number) is not int or number < 0:
                raise wrong(name, "must be a whole number")
        parameters = {**self.defaults, **asked}
        return inputs if isinstance(inputs, list) else [inputs], parameters

    def write(self, inputs: Any, sent: Mapping[str, Any], results: Sequence[Any], client: Any) -> Any:
        """Return the answer.

        Args:
            inputs: As the caller sent them.
            sent: The parameters, as the caller sent them.
            results: Of the records.
            client: That gave them.
        """
        rows = [self.convert(result, client) for result in results]
        return rows if isinstance(inputs, list) else rows[0]

    def convert(self, result: Any, client: Any) -> Any:
        """Return the result of one record."""
        return result


class ClassificationAnswers(HuggingFaceForm):
    """``[{"label", "score"}]``; a list of these for a list."""

    def read(self, inputs: Any, sent: Mapping[str, Any]) -> tuple[list[Any], Parameters]:
        records, parameters = super().read(inputs, sent)
        if "top_k" in sent and sent["top_k"] is None:
            parameters["top_k"] = ALL
        return records, parameters


class TextClassificationAnswers(ClassificationAnswers):
    """The best label, one for each text of a list; with ``top_k`` each text has a list."""

    def read(self, inputs: Any, sent: Mapping[str, Any]) -> tuple[list[Any], Parameters]:
        records, parameters = super().read(inputs, sent)
        if parameters.pop("return_all_scores", False):
            parameters["top_k"] = ALL
        is_pair = dict in set(map(type, records)) and any(
            isinstance(record, dict) and record.get("text_pair") is not None for record in records
        )
        if is_pair and parameters.get("truncation") == "only_first":
            raise wrong("truncation", "of a pair of texts the longest is cut off: longest_first")
        return records, read_tokenizer(parameters)

    def write(self, inputs: Any, sent: Mapping[str, Any], results: Sequence[Any], client: Any) -> Any:
        if "top_k" in sent:
            return super().write(inputs, sent, results, client)
        if sent.get("return_all_scores"):
            return [*results]
        best = [result[0] for result in results]
        return best[0] if isinstance(inputs, dict) else best


class TokenClassificationAnswers(HuggingFaceForm):
    """A row for each token, or for each span with an ``aggregation_strategy``."""

    defaults: Mapping[str, Any] = {"aggregation_strategy": "none", "truncate": True}


class QuestionAnsweringAnswers(HuggingFaceForm):
    """The best answer of each question, or a list of several; a list of one question is that question."""

    def read(self, inputs: Any, sent: Mapping[str, Any]) -> tuple[list[Any], Parameters]:
        # There a fast tokenizer, as ours are, reads a question to its end, and padding changes no answer.
        return super().read(inputs, {k: v for k, v in sent.items() if k not in WITHOUT_EFFECT})

    def write(self, inputs: Any, sent: Mapping[str, Any], results: Sequence[Any], client: Any) -> Any:
        answers = [result[0] if len(result) == 1 else result for result in results]
        return answers[0] if len(answers) == 1 else answers


class ZeroShotAnswers(HuggingFaceForm):
    """``{"sequence", "labels", "scores"}``; the labels are the parameter ``candidate_labels``."""

    defaults: Mapping[str, Any] = {"truncate": True}

    def read(self, inputs: Any, sent: Mapping[str, Any]) -> tuple[list[Any], Parameters]:
        texts, parameters = super().read(inputs, sent)
        labels = parameters.pop("candidate_labels", None)
        if isinstance(labels, str):
            labels = [label.strip() for label in labels.split(",") if label.strip()]
        if not isinstance(labels, list) or not labels:
            raise wrong("candidate_labels", "must be a list of labels, or a string of them with commas")
        return [{"text": text, "labels": labels} for text in texts], parameters

    def write(self, inputs: Any, sent: Mapping[str, Any], results: Sequence[Any], client: Any) -> Any:
        texts = inputs if isinstance(inputs, list) else [inputs]
        rows = [
            {
                "sequence": text,
                "labels": [row["label"] for row in result],
                "scores": [row["score"] for row in result],
            }
            for text, result in zip(texts, results, strict=True)
        ]
        return rows if isinstance(inputs, list) else rows[0]


class FillMaskAnswers(HuggingFaceForm):
    """The words of a mask, or a list of them for each of several; a list of one text is that text."""

    defaults: Mapping[str, Any] = {"separate": True}

    def read(self, inputs: Any, sent: Mapping[str, Any]) -> tuple[list[Any], Parameters]:
        records, parameters = super().read(inputs, sent)
        if isinstance(parameters.get("targets"), str):
            parameters["targets"] = [parameters["targets"]]
        if "tokenizer_kwargs" in parameters:
            own = read_tokenizer({"tokenizer_kwargs": parameters.pop("tokenizer_kwargs")})
            if own.pop("truncate", "max_input_tokens" in own):
                parameters["max_input_tokens"] = own.get("max_input_tokens", UNLIMITED)
        return records, parameters

    def write(self, inputs: Any, sent: Mapping[str, Any], results: Sequence[Any], client: Any) -> Any:
        return results[0] if len(results) == 1 else [*results]


class TextToTextAnswers(HuggingFaceForm):
    """``[{"generated_text"}]``, one for each text; named as the task's alias says."""

    def read(self, inputs: Any, sent: Mapping[str, Any]) -> tuple[list[Any], Parameters]:
        records, parameters = super().read(inputs, sent)
        # Other parameters of tokenizers are the answer's here, as ``max_length`` is.
        cutting = read_tokenizer({"truncation": parameters.pop("truncation", None)})
        return records, {**parameters, **cutting}

    def convert(self, result: Any, client: Any) -> Any:
        return {client.settings.answer: result["text"]}

    def write(self, inputs: Any, sent: Mapping[str, Any], results: Sequence[Any], client: Any) -> Any:
        return [self.convert(result, client) for result in results]


class EmbeddingsAnswers(HuggingFaceForm):
    """A vector for each text or picture, in a list also if there is one.

    Text Embeddings Inference, and huggingface_hub's client of it, have their options beside ``inputs``.
    """

    members = frozenset({"dimensions", "normalize", "prompt_name", "truncate", "truncation_direction"})

    def read(self, inputs: Any, sent: Mapping[str, Any]) -> tuple[list[Any], Parameters]:
        records, parameters = super().read(inputs, sent)
        parameters = read_tokenizer(parameters)
        if parameters.pop("return_tensors", False):
            raise wrong("return_tensors", "an answer is JSON")
        dimensions = parameters.pop("dimensions", None)
        if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
            raise WrongPayload("must be a number of at least 1", field=("dimensions",))
        return records, parameters

    def write(self, inputs: Any, sent: Mapping[str, Any], results: Sequence[Any], client: Any) -> Any:
        vectors, dimensions = [result["embedding"] for result in results], sent.get("dimensions")
        return [shorten(np.asarray(vector), dimensions) for vector in vectors] if dimensions else vectors


class DetectionAnswers(HuggingFaceForm):
    """``[{"score", "label", "box": {"xmin", "ymin", "xmax", "ymax"}}]``, corners in whole pixels."""

    defaults: Mapping[str, Any] = {"threshold": 0.5}

    def convert(self, result: Any, client: Any) -> Any:
        corners = {"xmin": "x1", "ymin": "y1", "xmax": "x2", "ymax": "y2"}
        return [
            {
                "score": row["score"],
                "label": row["label"],
                "box": {name: int(row["box"][own]) for name, own in corners.items()},
            }
            for row in result
        ]


class SegmentationAnswers(HuggingFaceForm):
    """``[{"score", "label", "mask"}]`` in the labels' order; a mask is a PNG in base64."""

    def convert(self, result: Any, client: Any) -> Any:
        return [
            {"score": None, "label": row["label"], "mask": encode_mask(**row["mask"])}
            for row in sorted(result, key=lambda row: client.labels.index(row["label"]))
        ]


def encode_mask(size: Sequence[int], counts: Sequence[int]) -> str:
    """Return COCO's run lengths as a PNG of one channel, in base64."""
    import cv2  # the gateway's Lambda has none

    values = np.arange(len(counts), dtype=np.uint8) % 2 * 255
    pixels = np.repeat(values, counts).reshape(size[::-1]).T
    return pybase64.b64encode(cv2.imencode(".png", pixels)[1].tobytes()).decode()


class TabularAnswers(HuggingFaceForm):
    """A row of outputs for each row: rows as lists or objects, or ``{"data": {column: values}}``."""

    def read(self, inputs: Any, sent: Mapping[str, Any]) -> tuple[list[Any], Parameters]:
        columns: Any = inputs.get("data") if isinstance(inputs, dict) and inputs.keys() == {"data"} else None
        if is_columns(columns):
            inputs = read_columns(columns, "inputs", "data")
        elif not isinstance(inputs, list) or not any(isinstance(row, list | dict) for row in inputs):
            inputs = [inputs]  # one row
        return [{"rows": inputs}], {**sent}

    def write(self, inputs: Any, sent: Mapping[str, Any], results: Sequence[Any], client: Any) -> Any:
        return results[0]


def is_columns(value: Any) -> bool:
    """True for lists of values by the names of their columns."""
    return isinstance(value, dict) and all(isinstance(values, list) for values in value.values())


def read_columns(columns: Mapping[str, list[Any]], *field: str) -> list[Any]:
    """Return the rows of columns by name. Raises :class:`WrongPayload` that names ``field``."""
    counts = {*map(len, columns.values())}
    if len(counts) > 1:
        raise WrongPayload("the columns differ in length", field=field)
    check_count(max(counts, default=0), *field)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def check_count(rows: int, *field: str) -> None:
    """Refuse too many rows before each is looked at."""
    if rows > MAX_ROWS:
        raise WrongPayload(f"has {rows:,} rows; at most {MAX_ROWS:,} are taken", field=field)


OTHER = HuggingFaceForm()
FORMS_OF_TASKS: Mapping[str, HuggingFaceForm] = {
    "audio-classification": ClassificationAnswers(),
    "fill-mask": FillMaskAnswers(),
    "image-classification": HuggingFaceForm(),  # there `top_k: null` is the default
    "image-embeddings": EmbeddingsAnswers(),
    "image-segmentation": SegmentationAnswers(),
    "object-detection": DetectionAnswers(),
    "question-answering": QuestionAnsweringAnswers(),
    "sentence-embeddings": EmbeddingsAnswers(),
    "tabular": TabularAnswers(),
    "text-classification": TextClassificationAnswers(),
    "text2text-generation": TextToTextAnswers(),
    "token-classification": TokenClassificationAnswers(),
    "zero-shot-classification": ZeroShotAnswers(),
}


def form_of(client: Client | None) -> HuggingFaceForm:
    """Return how a client answers: as the task whose class it is of, unless its results are its own."""
    return OTHER if client is None else _form_of_class(type(client))


@lru_cache(maxsize=256)
def _form_of_class(kind: type[Client]) -> HuggingFaceForm:
    task_of_class = {(f"{tasks.__name__}.{module}", name): task for task, (module, name) in TASKS.items()}
    # Without a task.json; named, as its import would load tokenizers in every worker.
    task_of_class["sm.client.fill_mask", "MaskClient"] = "fill-mask"
    for base in kind.__mro__:
        if task := task_of_class.get((base.__module__, base.__name__)):
            is_own = any(
                getattr(kind, name) is not getattr(base, name) for name in ("inference", "postprocess")
            )
            return OTHER if is_own else FORMS_OF_TASKS.get(task, OTHER)
    return OTHER


#: The members of a body; its ``options`` mean nothing here, as in the container.
MEMBERS = frozenset({"inputs", "parameters", "options", *ADDRESS_MEMBERS})


class HuggingFaceCall(Call):
    """A request as its caller sent it, and how its task answers."""

    def __init__(self, value: Mapping[str, Any], form: HuggingFaceForm) -> None:
        beside = {name: value[name] for name in form.members if name in value}
        self.inputs, self.form = value["inputs"], form
        self.sent = {**beside, **(value.get("parameters") or {})}
        if self.inputs is None or self.inputs == []:
            raise WrongPayload("is empty", field=("inputs",))
        records, parameters = form.read(self.inputs, self.sent)
        many = isinstance(self.inputs, list) and len(records) == len(self.inputs)
        super().__init__(records, parameters, *read_names(value), ("inputs",), many)

    def convert(self, found: list[Any], client: Any) -> Any:
        return self.form.write(self.inputs, self.sent, found, client)


class HuggingFace(Form):
    """``{"inputs", "parameters"}``, with inputs that are no tensors, for any client."""

    def has(self, reading: Reading) -> bool:
        return (
            reading.inference_type == "infer"
            and (reading.is_json or reading.kind == OCTET_STREAM)
            and reading.client is not None
            and has_inputs(reading)
            and not is_v2(reading)
        )

    def read(self, reading: Reading) -> HuggingFaceCall:
        value, form = reading.value, form_of(reading.client)
        members = MEMBERS | form.members
        if unknown := value.keys() - members:
            raise WrongPayload(
                f"no such member beside inputs; there are {', '.join(sorted(members))}", field=(min(unknown),)
            )
        check_types(value)
        return HuggingFaceCall(value, form)


def read_names(value: Mapping[str, Any]) -> tuple[str, str | int]:
    """Return the client's name and the version that a body names."""
    return value.get("modelname") or "", value.get("version") or ""
