"""Export PyTorch models to ONNX: torchvision models by name, transformers models by hub id or folder.

torch is imported only here, and only for such a source. The export is compared with the module at other sizes
than it was traced with, as exporters have produced wrong graphs.
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

from sm.errors import CommandError
from trireme_extensions.convert.accuracy import Comparison
from trireme_extensions.convert.build_request import TORCHVISION_PREFIX
from trireme_extensions.convert.graph_runner import Feed
from trireme_extensions.convert.onnx_graph import Graph
from trireme_tools.progress import Progress

#: Records of the example that torch traces (a size of 1 would become a constant), and words of each.
TRACED_RECORDS, TRACED_WORDS = 2, 12
#: The longest text if the model does not set a limit.
MAX_TOKENS = 512
OPSET = 18


@dataclass(frozen=True)
class Module:
    """A PyTorch module that takes ``inputs`` in order and returns one tensor, ``output``."""

    module: Any
    inputs: Mapping[str, Any]
    output: str
    #: torch's names of each input's free sizes, by position.
    free: Mapping[int, Any]

    def run(self, _: list[str], feed: Feed, /) -> list[Any]:
        """Run it as an ONNX Runtime session does, for the comparison."""
        torch = import_needed("torch")
        with torch.inference_mode():
            return [self.module(*(torch.from_numpy(feed[name]) for name in self.inputs)).numpy()]


def export(source: str, path: Path, progress: Progress) -> Path:
    """Export the source to ``path`` and compare the two. Raises :class:`CommandError` with the reason."""
    with progress.step(f"loading {source}"):
        loaded = torchvision(source) if source.startswith(TORCHVISION_PREFIX) else transformers(source)
    with progress.step(f"exporting {source} to ONNX"), redirect_stdout(progress.stream):
        _export(source, loaded, path)
    with progress.step(f"comparing the graph with {source}"):
        accuracy = Comparison(Graph.read(path), 8).against(path, loaded)
    progress.say(f"the graph differs from PyTorch by at most {accuracy.max_error:.2g}")
    return path


def torchvision(source: str) -> Module:
    """Load ``torchvision:resnet18`` with its newest weights."""
    torch, models = import_needed("torch"), import_needed("torchvision").models
    name = source.removeprefix(TORCHVISION_PREFIX)
    if name not in models.list_models():
        raise CommandError(
            f"torchvision has no model {name!r}: it has {', '.join(models.list_models()[:5])}, …"
        )
    weights = models.get_model_weights(name).DEFAULT
    side = weights.transforms().crop_size[0]
    module = _load_or_explain(source, lambda: models.get_model(name, weights=weights)).eval()
    wrapped = _wrap(module, lambda inner, example_inputs: inner(*example_inputs))
    return Module(
        wrapped,
        {"input": torch.rand(TRACED_RECORDS, 3, side, side)},
        "logits",
        {0: torch.export.Dim("batch")},
    )


def transformers(source: str) -> Module:
    """Load a hub id such as ``google-bert/bert-base-uncased``, or a checkpoint's folder, for texts or
    pictures.
    """
    torch, library = import_needed("torch"), import_needed("transformers")
    config = _load_or_explain(source, lambda: library.AutoConfig.from_pretrained(source))
    architecture = (config.architectures or ["AutoModel"])[0]
    module = _load_or_explain(source, lambda: getattr(library, architecture).from_pretrained(source)).eval()
    output = "last_hidden_state" if architecture.endswith("Model") else "logits"
    parameters = inspect.signature(module.forward).parameters
    batch = torch.export.Dim("batch")
    if "pixel_values" in parameters:
        inputs = {"pixel_values": torch.rand(TRACED_RECORDS, 3, config.image_size, config.image_size)}
        free = {0: batch}
    else:
        names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in parameters]
        # Separate tensors: torch takes one that is passed twice for a single input.
        inputs = {name: torch.ones(TRACED_RECORDS, TRACED_WORDS, dtype=torch.int64) for name in names}
        longest = getattr(config, "max_position_embeddings", MAX_TOKENS)
        free = {0: batch, 1: torch.export.Dim("length", max=longest)}
    wrapped = _wrap(
        module, lambda inner, arguments: inner(**dict(zip(inputs, arguments, strict=True)))[output]
    )
    return Module(wrapped, inputs, output, free)


def import_needed(name: str) -> ModuleType:
    """Import a package that the box itself does not need."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CommandError(
            f"such a source needs {error.name or name}, which is not installed: "
            "pip install torch torchvision transformers onnxscript, or name an ONNX file with --source."
        ) from None


def _load_or_explain(source: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # each library has classes of its own for a hub that is not there
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise CommandError(
            f"{source} could not be loaded: {lines[0].rstrip('.')}. Check the name and the network, "
            "or name an ONNX file with --source."
        ) from error


def _wrap(module: Any, call: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
    """Wrap a module so that it takes tensors in order and returns one tensor."""
    torch = import_needed("torch")

    class Wrapped(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *tensors: Any) -> Any:
            return call(self.inner, tensors)

    return Wrapped().eval()


def _export(source: str, loaded: Module, path: Path) -> None:
    torch = import_needed("torch")
    import_needed("onnxscript")
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
        raise CommandError(f"{source} cannot be exported: {str(error).splitlines()[0]}.") from error
