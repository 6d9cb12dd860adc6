"""Hugging Face's form of a request, ``{"inputs", "parameters"}``, for every task.

The answer is what SageMaker's Hugging Face container sends: what the pipeline of transformers returns, as
bare JSON (``HuggingFaceHandlerService.predict`` of sagemaker-huggingface-inference-toolkit, and the classes
in transformers/pipelines). Embeddings answer as Text Embeddings Inference does: a vector for each text.
"""

# ruff: noqa: ARG002  # each pipeline needs another part of the request

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sm.client import tasks
from sm.client.base import Client
from sm.errors import WrongPayload

Parameters = dict[str, Any]
#: Of ``top_k: null``: all labels.
ALL = 1000


class Pipeline:
    """How inputs become records, and results the answer. This one keeps both: a client of no known task."""

    #: The client's parameters by their names in transformers.
    names: Mapping[str, str] = {}
    #: The client's parameters that have another default in transformers.
    defaults: Mapping[str, Any] = {}

    def read(self, inputs: Any, sent: Mapping[str, Any]) -> tuple[list[Any], Parameters]:
        """Return the records and the client's parameters. Raises :class:`WrongPayload`."""
        parameters = {**self.defaults, **{self.names.get(name, name): value for name, value in sent.items()}}
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


class Classification(Pipeline):
    """``[{"label", "score"}]`` of a picture or a recording; a list of these for a list."""

    names: Mapping[str, str] = {"top_k": "top"}

    def read(self, inputs: Any, sent: Mapping[str, Any]) -> tuple[list[Any], Parameters]:
        records, parameters = super().read(inputs, sent)
        if "top_k" in sent and sent["top_k"] is None:
            parameters["top"] = ALL
        return records, parameters


class TextClassification(Classification):
    """The best label, one for each text of a list; with ``top_k`` each text has a list."""

    defaults: Mapping[str, Any] = {"top": 1}

    def read(self, inputs: Any, sent: Mapping[str, Any]) -> tuple[list[Any], Parameters]:
        records, parameters = super().read(inputs, sent)
        if parameters.pop("return_all_scores", False):
            parameters["top"] = ALL
        return records, parameters

    def write(self, inputs: Any, sent: Mapping[str, Any], results: Sequence[Any], client: Any) -> Any:
        if "top_k" in sent:
            return super().write(inputs, sent, results, client)
        if sent.get("return_all_scores"):
            return [*results]
        best = [result[0] for result in results]
        return best[0] if isinstance(inputs, dict) else best


class TokenClassification(Pipeline):
    """Spans, as ``aggregation_strategy`` ``simple`` gives them: the box has no other."""

    def read(self, inputs: Any, sent: Mapping[str, Any]) -> tuple[list[Any], Parameters]:
        records, parameters = super().read(inputs, sent)
        if (strategy := parameters.pop("aggregation_strategy", "simple")) != "simple":
            raise WrongPayload(
                f"parameters.aggregation_strategy: {str(strategy)[:40]!r} is not served here, only 'simple'",
                field="parameters.aggregation_strategy",
            )
        return records, parameters

    def convert(self, result: Any, client: Any) -> Any:
        return [
            {
                "entity_group": row["label"],
                "score": row["score"],
                "word": row["text"],
                "start": row["start"],
                "end": row["end"],
            }
            for row in result
        ]


class QuestionAnswering(Pipeline):
    """The best answer of each question, or a list of them with ``top_k``; a list of one question is one."""

    names: Mapping[str, str] = {"top_k": "top", "topk": "top"}

    def write(self, inputs: Any, sent: Mapping[str, Any], results: Sequence[Any], client: Any) -> Any:
        is_one = sent.get("top_k", sent.get("topk", 1)) == 1
        nothing = {"score": 0.0, "start": 0, "end": 0, "answer": ""}
        answers = [(result[0] if result else nothing) if is_one else result for result in results]
        return answers[0] if len(answers) == 1 else answers


class ZeroShot(Pipeline):
    """``{"sequence", "labels", "scores"}``; the labels are the parameter ``candidate_labels``."""

    names: Mapping[str, str] = {"hypothesis_template": "hypothesis"}

    def read(self, inputs: Any, sent: Mapping[str, Any]) -> tuple[list[Any], Parameters]:
        texts, parameters = super().read(inputs, sent)
        labels = parameters.pop("candidate_labels", None)
        if isinstance(labels, str):
            labels = [label.strip() for label in labels.split(",") if label.strip()]
        if not isinstance(labels, list) or not labels:
            field = "parameters.candidate_labels"
            raise WrongPayload(
                f"{field}: must be a list of labels, or a string of them with commas", field=field
            )
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


class FillMask(Pipeline):
    """``[{"score", "token", "token_str", "sequence"}]`` of a text with one mask."""

    names: Mapping[str, str] = {"top_k": "top"}

    def write(self, inputs: Any, sent: Mapping[str, Any], results: Sequence[Any], client: Any) -> Any:
        texts = inputs if isinstance(inputs, list) else [inputs]
        rows = [
            [self.row(text, row, client) for row in result]
            for text, result in zip(texts, results, strict=True)
        ]
        return rows if isinstance(inputs, list) else rows[0]

    @staticmethod
    def row(text: Any, row: Mapping[str, Any], client: Any) -> dict[str, Any]:
        """Find the word in the filled text: what stands in the place of the mask."""
        text = text["text"] if isinstance(text, dict) else text
        before, mask, after = text.partition(client.settings.mask_token)
        filled = row["token"]
        if client.settings.mask_token in after or not mask:
            raise WrongPayload("inputs: a text with one mask is served in this form", field="inputs")
        end = len(filled) - len(after)
        word = filled[len(before) : end]
        if not filled.startswith(before) or client.tokenizer.token_to_id(word) is None:
            word = f"##{filled[len(before.rstrip()) : end]}"
        return {
            "score": row["score"],
            "token": client.tokenizer.token_to_id(word),
            "token_str": word,
            "sequence": filled,
        }


class TextToText(Pipeline):
    """``[{"generated_text"}]``, one for each text."""

    names: Mapping[str, str] = {"max_new_tokens": "max_tokens", "max_length": "max_tokens"}

    def write(self, inputs: Any, sent: Mapping[str, Any], results: Sequence[Any], client: Any) -> Any:
        return [{"generated_text": result["text"]} for result in results]


class Embeddings(Pipeline):
    """A vector for each text or picture, in a list also if there is one."""

    def write(self, inputs: Any, sent: Mapping[str, Any], results: Sequence[Any], client: Any) -> Any:
        return [result["embedding"] for result in results]


class Detection(Pipeline):
    """``[{"score", "label", "box": {"xmin", "ymin", "xmax", "ymax"}}]``, corners in whole pixels."""

    names: Mapping[str, str] = {"threshold": "confidence"}

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


class Tabular(Pipeline):
    """A row of outputs for each row: rows as lists or objects, or ``{"data": {column: values}}``."""

    def read(self, inputs: Any, sent: Mapping[str, Any]) -> tuple[list[Any], Parameters]:
        columns = inputs.get("data") if isinstance(inputs, dict) and inputs.keys() == {"data"} else None
        if isinstance(columns, dict) and all(isinstance(values, list) for values in columns.values()):
            if len(set(map(len, columns.values()))) > 1:
                raise WrongPayload("inputs.data: the columns differ in length", field="inputs.data")
            inputs = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        elif not isinstance(inputs, list) or not any(isinstance(row, list | dict) for row in inputs):
            inputs = [inputs]  # one row
        return [{"rows": inputs}], {**sent}

    def write(self, inputs: Any, sent: Mapping[str, Any], results: Sequence[Any], client: Any) -> Any:
        return results[0]


OTHER = Pipeline()
PIPELINES: Mapping[str, Pipeline] = {
    "audio-classification": Classification(),
    "fill-mask": FillMask(),
    "image-classification": Classification(),
    "image-embeddings": Embeddings(),
    "object-detection": Detection(),
    "question-answering": QuestionAnswering(),
    "sentence-embeddings": Embeddings(),
    "tabular": Tabular(),
    "text-classification": TextClassification(),
    "text2text-generation": TextToText(),
    "token-classification": TokenClassification(),
    "zero-shot-classification": ZeroShot(),
}


def pipeline_of(client: Client) -> Pipeline:
    """Return how a client answers: by its task, or by that of the class that it inherits from."""
    return _pipeline_of_class(type(client))


@lru_cache(maxsize=256)
def _pipeline_of_class(kind: type[Client]) -> Pipeline:
    task_of_class = {
        (f"{tasks.__name__}.{module}", name): task for task, (module, name) in tasks.TASKS.items()
    }
    for base in kind.__mro__:
        if task := task_of_class.get((base.__module__, base.__name__)):
            return PIPELINES.get(task, OTHER)
    return OTHER
