"""Change a graph so that less is sent and computed: bytes of a picture go in, objects or words come out."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from sm.commands.build import masks, model_config, pixels, suppression
from sm.commands.build.onnx_graph import Graph
from sm.errors import CommandError
from sm.repository.manifest import Change

NAMES: tuple[Change, ...] = get_args(Change)
#: Options of sm build-model that belong to a model, for every target; the file is beside its config.pbtxt in
#: git.
OPTIONS = "build.options"
#: The file that describes a picture's preprocessing.
DESCRIPTION = "preprocess.json"
#: The file with a language model's vocabulary.
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Changes:
    """Changes of a graph."""

    #: The input is the picture's bytes.
    uint8: bool = False
    #: Boxes are suppressed in the graph.
    nms: bool = False
    #: A language model gives only the best words of its masks.
    masks: bool = False

    @classmethod
    def read(cls, model: Path) -> Changes:
        """Read the changes from the model's folder in git."""
        words = options(model / OPTIONS)
        unknown = set(words) - {f"--{name}" for name in NAMES}
        if unknown:
            raise CommandError(f"{model / OPTIONS}: {min(unknown)} is not for every target.")
        return cls(**{name: f"--{name}" in words for name in NAMES})

    @property
    def names(self) -> tuple[Change, ...]:
        """The names of the changes, for the manifest."""
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
        """Change the graph in ``workshop``. ``description`` is the ``preprocess.json`` to use.

        ``tokenizer``, by default beside it, is read for ``masks`` only.
        """
        prepared = pixels.add_scaling(source, description, workshop / "pixels.onnx") if self.uint8 else source
        if self.masks and not masks.has_mask_outputs(prepared):
            vocabulary = masks.Vocabulary.read(description, tokenizer or description.with_name(TOKENIZER))
            served = masks.add_mask_outputs(prepared, vocabulary, workshop / "masks.onnx")
        else:
            served = self.suppress_boxes(prepared, workshop, plugin=plugin)
        # A change that the source already contains is not made again.
        has_new_outputs = served is not prepared
        applied = Changes(
            prepared is not source, self.nms and has_new_outputs, self.masks and has_new_outputs
        )
        return Graphs(source, prepared, served, applied)

    def suppress_boxes(self, graph: Graph, workshop: Path, *, plugin: bool) -> Graph:
        """Suppress boxes, with a ``plugin`` for TensorRT, or with the operator for ONNX Runtime."""
        return (
            suppression.add_suppression(graph, workshop / "objects.onnx", plugin=plugin)
            if self.nms
            else graph
        )


@dataclass(frozen=True)
class Graphs:
    """A graph before, between and after its changes."""

    source: Graph
    #: Has the input of ``served`` and the outputs of ``source``, so that both can be compared with it.
    prepared: Graph
    served: Graph
    #: The changes from ``source`` to ``served``.
    applied: Changes


def options(path: Path) -> list[str]:
    """Return the words in a file of options; none if there is no file."""
    return shlex.split(path.read_text(), comments=True) if path.is_file() else []


def adapt_config(written: Any, changes: Changes, graph: Graph) -> Any:
    """Describe the tensors that ``changes`` affect, in a copy of the unchanged graph's configuration."""
    adapted = type(written)()
    adapted.CopyFrom(written)
    for tensors, values, is_affected in (
        (adapted.input, graph.inputs, changes.uint8 or changes.nms),
        (adapted.output, graph.outputs, changes.nms or changes.masks),
    ):
        if is_affected:
            del tensors[:]
            model_config.add_tensors(tensors, values, batched=graph.batched)
    return adapted
