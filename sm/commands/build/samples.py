"""Compare a client's answers from the built model with those from its source."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sm.client.base import Array, Client, ModelMetadata, TensorMetadata, Tensors
from sm.commands.build.graph_runner import Runner
from sm.commands.build.onnx_graph import Graph, Value
from sm.commands.golden import differences
from sm.plugins.loading import ClientSource, load
from sm.plugins.registry import check
from sm.router.answers import dumps

PICTURES = (".png", ".jpg", ".jpeg")
#: More samples of a client that takes texts, one a line.
TEXTS = "texts.txt"


class InProcess:
    """Triton's interface for a client, backed by a graph in this process."""

    def __init__(self, graph: Graph, runner: Runner) -> None:
        self.graph, self.runner = graph, runner

    def infer(
        self,
        model: str,  # noqa: ARG002  # there is the one
        inputs: Tensors,
        *,
        version: str = "",  # noqa: ARG002
        outputs: Sequence[str] | None = None,
    ) -> dict[str, Array]:
        names = list(outputs or [value.name for value in self.graph.outputs])
        return dict(zip(names, self.runner.run(names, dict(inputs)), strict=True))

    def stream(
        self, model: str, inputs: Tensors, *, version: str = "", outputs: Sequence[str] | None = None
    ) -> Generator[dict[str, Array], None, None]:
        yield self.infer(model, inputs, version=version, outputs=outputs)

    def metadata(self, model: str, version: str = "") -> ModelMetadata:  # noqa: ARG002
        largest = 1 if self.graph.batched else 0
        return ModelMetadata(
            model, ("1",), largest, self._tensors(self.graph.inputs), self._tensors(self.graph.outputs)
        )

    def _tensors(self, values: Sequence[Value]) -> Mapping[str, TensorMetadata]:
        skipped = int(self.graph.batched)
        return {
            value.name: TensorMetadata(
                value.name, value.datatype.removeprefix("TYPE_"), value.shape[skipped:]
            )
            for value in values
        }


def count_equal_answers(
    folder: Path, repository: Path, source: InProcess, built: InProcess
) -> tuple[int, int] | None:
    """Return how many samples have equal answers, and how many there are; None if the client has no samples.

    ``repository`` has the model's folder with its labels. :mod:`sm.commands.golden` decides what is equal.
    The two graphs may have different tensors if the client supports both.
    """
    file = folder / "client.py"
    if not (file.is_file() and (folder / "sample").is_dir()):
        return None
    built_answers, source_answers = (
        answers(ClientSource(folder.name, file), repository, model) for model in (built, source)
    )
    equal = [
        not list(differences(actual, expected))
        for actual, expected in zip(built_answers, source_answers, strict=True)
    ]
    return (sum(equal), len(equal)) if equal else None


def answers(
    source: ClientSource, repository: Path, triton: InProcess, samples: Path | None = None
) -> Iterator[Any]:
    """Yield the client's answer to each of its samples, or to those in the folder ``samples``."""
    client = load(source, triton, repository)
    check(client, source, triton)
    for payload in _samples(client, samples or source.file.parent / "sample"):
        yield json.loads(dumps(client.inference(client.payload.model_validate(payload))))


def _samples(client: Client, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the payload of ``sm test``, and each picture or line of ``texts.txt`` beside it that it takes."""
    if (folder / "payload.json").is_file():
        yield json.loads((folder / "payload.json").read_bytes())
    if "image" in client.payload.model_fields:
        for path in sorted(folder.iterdir()):
            if path.suffix in PICTURES:
                yield {"image": path.read_bytes()}
    if "text" in client.payload.model_fields and (folder / TEXTS).is_file():
        for line in (folder / TEXTS).read_text(encoding="utf-8").splitlines():
            yield {"text": line}
