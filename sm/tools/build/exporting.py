"""From PyTorch to ONNX: a torchvision model by its name, a transformers model by its hub id or folder.

torch is imported here alone, and only when such a source is asked for. What was exported is compared with
the module at sizes other than the one it was traced at: exporters have been seen to be wrong by far.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from sm.errors import StartError
from sm.tools.build.accuracy import Comparison, Feed
from sm.tools.build.onnx_graph import Graph
from sm.tools.progress import Progress

TORCHVISION = "torchvision:"
#: torch takes a size of 1 for a constant, so a model is traced with two records, of so many words.
TRACED, WORDS = 2, 12
#: The largest length where the model does not say one.
MAX_TOKENS = 512
OPSET = 18


@dataclass(frozen=True)
class Module:
    """A PyTorch module that takes ``inputs`` in order and answers with one tensor, ``output``."""

    module: Any
    inputs: Mapping[str, Any]
    output: str
    #: What torch calls the free sizes of each input, by place.
    free: Mapping[int, Any]

    def run(self, _: list[str], feed: Feed, /) -> list[Any]:
        """As an ONNX Runtime session does, for the comparison."""
        torch = needed("torch")
        with torch.inference_mode():
            return [self.module(*(torch.from_numpy(feed[name]) for name in self.inputs)).numpy()]


def is_torch(source: str) -> bool:
    """Whether a source is PyTorch's: no ONNX file, but a name for torchvision, a hub id, a folder."""
    return source.startswith(TORCHVISION) or (not source.endswith(".onnx") and not Path(source).is_file())


def export(source: str, path: Path, progress: Progress) -> Path:
    """The source as ONNX at ``path``, compared with it; :class:`StartError` says why there is none."""
    with progress.step(f"loading {source}"):
        loaded = torchvision(source) if source.startswith(TORCHVISION) else transformers(source)
    with progress.step(f"exporting {source} to ONNX"), redirect_stdout(progress.stream):
        _export(source, loaded, path)
    with progress.step(f"comparing the graph with {source}"):
        found = Comparison(Graph.read(path), 8).against(path, loaded)
    progress.say(f"the graph differs from PyTorch by at most {found.max_error:.2g}")
    return path


def torchvision(source: str) -> Module:
    """``torchvision:resnet18``, with its newest weights."""
    torch, models = needed("torch"), needed("torchvision").models
    name = source.removeprefix(TORCHVISION)
    if name not in models.list_models():
        raise StartError(
            f"torchvision has no model {name!r}: it has {', '.join(models.list_models()[:5])}, …"
        )
    weights = models.get_model_weights(name).DEFAULT
    side = weights.transforms().crop_size[0]
    module = _reached(source, lambda: models.get_model(name, weights=weights)).eval()
    answering = _answering(module, lambda inner, given: inner(*given))
    return Module(
        answering,
        {"input": torch.rand(TRACED, 3, side, side)},
        "logits",
        {0: torch.export.Dim("batch")},
    )


def transformers(source: str) -> Module:
    """A hub id such as ``google-bert/bert-base-uncased``, or a checkpoint's folder; of texts or pictures."""
    torch, library = needed("torch"), needed("transformers")
    config = _reached(source, lambda: library.AutoConfig.from_pretrained(source))
    architecture = (config.architectures or ["AutoModel"])[0]
    module = _reached(source, lambda: getattr(library, architecture).from_pretrained(source)).eval()
    output = "last_hidden_state" if architecture.endswith("Model") else "logits"
    taken = inspect.signature(module.forward).parameters
    batch = torch.export.Dim("batch")
    if "pixel_values" in taken:
        inputs = {"pixel_values": torch.rand(TRACED, 3, config.image_size, config.image_size)}
        free = {0: batch}
    else:
        names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in taken]
        # A tensor each: torch takes one that is given twice for one input.
        inputs = {name: torch.ones(TRACED, WORDS, dtype=torch.int64) for name in names}
        longest = getattr(config, "max_position_embeddings", MAX_TOKENS)
        free = {0: batch, 1: torch.export.Dim("length", max=longest)}
    answering = _answering(
        module, lambda inner, given: inner(**dict(zip(inputs, given, strict=True)))[output]
    )
    return Module(answering, inputs, output, free)


def needed(name: str) -> ModuleType:
    """A package that this needs and the box does not."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise StartError(
            f"such a source needs {error.name or name}, which is not installed: "
            "pip install torch torchvision transformers onnxscript, or name an ONNX file with --source."
        ) from None


def _reached(source: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # each library has classes of its own for a hub that is not there
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise StartError(
            f"{source} could not be loaded: {lines[0].rstrip('.')}. Look at the name and at the network, "
            "or name an ONNX file with --source."
        ) from error


def _answering(module: Any, call: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
    """A module that takes tensors in order and gives one tensor."""
    torch = needed("torch")

    class Answering(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *tensors: Any) -> Any:
            return call(self.inner, tensors)

    return Answering().eval()


def _export(source: str, loaded: Module, path: Path) -> None:
    torch = needed("torch")
    needed("onnxscript")
    try:
        torch.onnx.export(
            loaded.module,
            tuple(loaded.inputs.values()),
            str(path),
            input_names=list(loaded.inputs),
            output_names=[loaded.output],
            dynamic_shapes=(tuple(loaded.free for _ in loaded.inputs),),
            dynamo=True,
            external_data=False,
            opset_version=OPSET,
            verbose=False,
        )
    except Exception as error:
        raise StartError(f"{source} cannot be exported: {str(error).splitlines()[0]}.") from error
