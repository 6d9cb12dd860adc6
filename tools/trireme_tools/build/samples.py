"""A client's samples on a graph: the answers of two graphs compared, and the golden data of one."""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sm.client.base import Array, Client, ModelMetadata, TensorMetadata, Tensors
from sm.client.results import dumps
from sm.plugins.checks import check
from sm.plugins.golden import differences
from sm.plugins.loading import load
from sm.plugins.sources import ClientSource
from sm.repository.manifest import Change
from sm.triton.tensors import configured
from trireme_extensions.convert.graph_runner import Feed, Runner, session
from trireme_extensions.convert.onnx_graph import Graph, Value
from trireme_tools.build.golden_data import MAX_FEEDS, are_equal, edges, write

PICTURES = (".png", ".jpg", ".jpeg")
#: More samples of a client that takes texts, one a line.
TEXTS = "texts.txt"
PAYLOAD = "payload.json"


class InProcess:
    """Triton's interface for a client, backed by a graph in this process.

    It answers for every name but those of the models ``beside`` it.
    """

    def __init__(self, graph: Graph, runner: Runner, beside: Mapping[str, InProcess] | None = None) -> None:
        self.graph, self.runner, self.beside = graph, runner, beside or {}

    def infer(
        self,
        model: str,
        inputs: Tensors,
        *,
        version: str = "",  # noqa: ARG002
        outputs: Sequence[str] | None = None,
    ) -> dict[str, Array]:
        if model in self.beside:
            return self.beside[model].infer(model, inputs, outputs=outputs)
        names = list(outputs or [value.name for value in self.graph.outputs])
        # ONNX Runtime makes the text "b'a'" of bytes, which Triton's tensors of strings have.
        feed = {name: decoded(array) for name, array in inputs.items()}
        return dict(zip(names, self.runner.run(names, feed), strict=True))

    def stream(
        self, model: str, inputs: Tensors, *, version: str = "", outputs: Sequence[str] | None = None
    ) -> Generator[dict[str, Array], None, None]:
        yield self.infer(model, inputs, version=version, outputs=outputs)

    def metadata(self, model: str, version: str = "") -> ModelMetadata:  # noqa: ARG002
        if model in self.beside:
            return self.beside[model].metadata(model)
        largest = 1 if self.graph.batched else 0
        return ModelMetadata(
            model, ("1",), largest, self._tensors(self.graph.inputs), self._tensors(self.graph.outputs)
        )

    def _tensors(self, values: Sequence[Value]) -> Mapping[str, TensorMetadata]:
        skipped = int(self.graph.batched)
        return {
            value.name: TensorMetadata(value.name, configured(value.datatype), value.shape[skipped:])
            for value in values
        }


def decoded(array: Array) -> Array:
    """Return an array with texts in place of bytes."""
    if array.dtype != np.object_:
        return array
    texts = [each.decode() if isinstance(each, bytes) else each for each in array.ravel()]
    return np.array(texts, np.object_).reshape(array.shape)


def count_equal_answers(
    folder: Path, repository: Path, source: InProcess, built: InProcess
) -> tuple[int, int] | None:
    """Return how many samples have equal answers, and how many there are; None if the client has no samples.

    ``repository`` has the model's folder with its labels. :mod:`sm.plugins.golden` decides what is equal.
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
        for (_, actual), (_, expected) in zip(built_answers, source_answers, strict=True)
    ]
    return (sum(equal), len(equal)) if equal else None


def answers(
    source: ClientSource, repository: Path, triton: InProcess, samples: Path | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield the file and the client's answer of each of its samples, or of the folder ``samples``."""
    client = load(source, triton, repository)
    check(client, source, triton)
    for name, payload in _samples(client, samples or source.file.parent / "sample"):
        yield name, json.loads(dumps(client.inference(client.payload.model_validate(payload))))


def _samples(client: Client, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the payload of ``sm test``, and each picture or line of ``texts.txt`` beside it that it takes."""
    if (folder / PAYLOAD).is_file():
        yield PAYLOAD, json.loads((folder / PAYLOAD).read_bytes())
    if "image" in client.payload.model_fields:
        for path in sorted(folder.iterdir()):
            if path.suffix in PICTURES:
                yield path.name, {"image": path.read_bytes()}
    if "text" in client.payload.model_fields and (folder / TEXTS).is_file():
        for line in (folder / TEXTS).read_text("utf-8-sig").splitlines():
            yield TEXTS, {"text": line}


class SampleRecorder:
    """Runs a graph, and keeps what went in."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.feeds: list[Feed] = []

    def run(self, output_names: list[str], input_feed: Feed, /) -> list[NDArray[Any]]:
        if not any(are_equal(input_feed, feed) for feed in self.feeds):
            self.feeds.append(input_feed)
        return self.runner.run(output_names, input_feed)


def from_samples(
    graph: Graph, applied: Collection[Change], client: Path, repository: Path, out: Path
) -> bool:
    """Write the golden data from the samples of a client; False if it has none.

    Args:
        graph: The graph as it is served.
        applied: The changes that were made in it, which say what its outputs are.
        client: The client's folder.
        repository: Has the model's folder with its labels or vocabulary.
        out: The version folder.
    """
    if not (client / "client.py").is_file() or not (client / "sample").is_dir():
        return False
    feeds = [feed for _, feed in client_feeds(graph, client, repository)[:MAX_FEEDS]]
    return write(graph, feeds, *kinds(graph, applied), out)


def client_feeds(
    graph: Graph, client: Path, repository: Path, samples: Path | None = None
) -> list[tuple[str, Feed]]:
    """Return what a client makes of its samples, or of the pictures and ``texts.txt`` in ``samples``.

    Each with the name of its file.
    """
    recorder, found = SampleRecorder(session(graph.path)), list[tuple[str, Feed]]()
    source = ClientSource(client.name, client / "client.py")
    for name, _ in answers(source, repository, InProcess(graph, recorder), samples):
        found += [(name, feed) for feed in recorder.feeds[len(found) :]]
    return found


def from_records(graph: Graph, feeds: Sequence[Feed], out: Path) -> bool:
    """Write the golden data from a team's own inputs; False for a graph that takes texts."""
    return write(graph, [*feeds[:MAX_FEEDS], *edges(graph, feeds[0])], {}, "", out)


def kinds(graph: Graph, applied: Collection[Change]) -> tuple[dict[str, str], str]:
    """Return how the outputs are compared, and the name of the words' scores."""
    names = [value.name for value in graph.outputs]
    if "nms" in applied:
        return dict.fromkeys(names, "boxes"), ""
    if "masks" in applied:
        return {names[0]: "words"}, names[1]
    # Scores for each label: floats [batch, labels].
    return {
        value.name: "labels"
        for value in graph.outputs
        if len(value.sizes) == 2 and value.datatype in ("TYPE_FP32", "TYPE_FP16", "TYPE_FP64")
    }, ""
