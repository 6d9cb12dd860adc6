"""What a build changes in a graph, to send and compute less: pixels go in, objects or words come out."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from sm.errors import StartError
from sm.repository.manifest import Change
from sm.tools.build import masks, model_config, pixels, suppression
from sm.tools.build.onnx_graph import Graph

NAMES: tuple[Change, ...] = get_args(Change)
#: Words of sm build-model that belong to a model, for every target; beside its config.pbtxt in git.
OPTIONS = "build.options"
#: What the description of a picture is called.
DESCRIPTION = "preprocess.json"
#: Where a language model has its vocabulary.
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Changes:
    """``uint8``: the input is the picture's bytes. ``nms``: boxes are suppressed in the graph.

    ``masks``: a language model gives the best words of its masks alone.
    """

    uint8: bool = False
    nms: bool = False
    masks: bool = False

    @classmethod
    def read(cls, model: Path) -> Changes:
        """What the model's folder in git says of the demo's build."""
        words = options(model / OPTIONS)
        unknown = set(words) - {f"--{name}" for name in NAMES}
        if unknown:
            raise StartError(f"{model / OPTIONS}: {min(unknown)} is not for every target.")
        return cls(**{name: f"--{name}" in words for name in NAMES})

    @property
    def names(self) -> tuple[Change, ...]:
        """For the manifest."""
        return tuple(name for name in NAMES if getattr(self, name))

    def graphs(
        self,
        source: Graph,
        description: Path,
        workshop: Path,
        *,
        plugin: bool = False,
        tokenizer: Path | None = None,
    ) -> Graphs:
        """Made in ``workshop``; ``description`` is what ``preprocess.json`` is to be read.

        ``tokenizer``, beside it if None, is read for ``masks`` alone.
        """
        given = pixels.given(source, description, workshop / "pixels.onnx") if self.uint8 else source
        if self.masks and not masks.within(given):
            vocabulary = masks.Vocabulary.read(description, tokenizer or description.with_name(TOKENIZER))
            served = masks.added(given, vocabulary, workshop / "masks.onnx")
        else:
            served = self.suppressed(given, workshop, plugin=plugin)
        # What the source has inside already, having been built so, comes back as it is.
        ends = served is not given
        made = Changes(given is not source, self.nms and ends, self.masks and ends)
        return Graphs(source, given, served, made)

    def suppressed(self, graph: Graph, workshop: Path, *, plugin: bool) -> Graph:
        """TensorRT takes a ``plugin``, ONNX Runtime the operator."""
        return suppression.added(graph, workshop / "objects.onnx", plugin=plugin) if self.nms else graph


@dataclass(frozen=True)
class Graphs:
    """``given`` has the input of ``served`` and the outputs of ``source``: both can be compared with it.

    ``made``: how ``served`` differs from ``source``.
    """

    source: Graph
    given: Graph
    served: Graph
    made: Changes


def options(path: Path) -> list[str]:
    """The words in a file of options; none where there is no file."""
    return shlex.split(path.read_text(), comments=True) if path.is_file() else []


def retold(written: Any, changes: Changes, graph: Graph) -> Any:
    """A configuration of the plain graph for one with ``changes``: the tensors that these touch are its."""
    made = type(written)()
    made.CopyFrom(written)
    for tensors, values, others in (
        (made.input, graph.inputs, changes.uint8 or changes.nms),
        (made.output, graph.outputs, changes.nms or changes.masks),
    ):
        if others:
            del tensors[:]
            model_config.tell(tensors, values, batched=graph.batched)
    return made
