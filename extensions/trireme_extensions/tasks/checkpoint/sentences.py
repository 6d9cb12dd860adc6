"""Read files of sentence-transformers: vectors of texts, prompts, and what cross-encoders score."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sm.errors import CommandError
from trireme_extensions.tasks.checkpoint.files import fields_of, read_json, read_object, refuse

#: The modules' own package; another one is code of a repository, which is never run.
PACKAGE = "sentence_transformers."
#: The names of ``sentence_bert_config.json``; the first that says something counts.
KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
#: Older and newer names of the ways to pool, and the options here, in the order in which several are joined.
POOLINGS = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weightedmean",
    "lasttoken": "last",
}
MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
#: The modules that may be behind Transformer.
MODULES = ("Pooling", "Dense", "Dropout", "LayerNorm", "Normalize")
#: PyTorch's activations of a dense layer, and the names of the options here.
ACTIVATIONS = {"Identity": "none", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "Sigmoid": "sigmoid"}
#: The file of a whole model, and the kind of it that scores pairs of texts.
FILE, CROSS_ENCODER = "config_sentence_transformers.json", "CrossEncoder"
WEIGHTS = "model.safetensors"
#: The arrays of the layers, beside ``task.json``.
ARRAYS = "layers.npz"


def sentences(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the options of a model of sentences, and the files beside them.

    Raises:
        CommandError: A module, or what one asks for, is not applied here; the sentence names it.
    """
    refuse(*transformer(folder), fields_of("transformer"))
    options = _prompts(folder)
    modules = read_json(folder / "modules.json")
    if not modules:
        return {**options, "pooling": "mean", "normalise": True}, {}
    layers: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    has_pooling = False
    for place, module in enumerate(modules):
        kind, path = _kind(folder, module), folder / str(module.get("path", ""))
        if place == 0:
            if kind != "Transformer" or path != folder:
                raise _unknown(
                    folder, module, "begins with another module than Transformer in its own folder"
                )
            continue
        if kind not in MODULES or (kind == "Pooling") is has_pooling:
            raise _unknown(folder, module, "is not applied here")
        described = read_object(path / "config.json")
        refuse(path / "config.json", described, fields_of("module", kind))
        if kind == "Pooling":
            has_pooling = True
            options |= _pooling(path / "config.json", described)
        elif kind == "Normalize":
            layers.append({"kind": "normalise"})
        elif kind in ("Dense", "LayerNorm"):
            name = f"layer{place}"
            layers.append({"kind": kind.lower(), "name": name, **_activation(path, described, kind)})
            arrays |= {f"{name}.{part}": array for part, array in _weights(path, described, kind).items()}
    if not has_pooling:
        raise CommandError(f"{folder / 'modules.json'} has no Pooling: the model gives no vector of a text.")
    options["normalise"] = bool(layers) and layers[-1]["kind"] == "normalise"
    layers = layers[:-1] if options["normalise"] else layers
    if not layers:
        return options, {}
    written = io.BytesIO()
    np.savez(written, **arrays)
    return {**options, "layers": layers}, {ARRAYS: written.getvalue()}


def is_cross_encoder(folder: Path) -> bool:
    """True if sentence-transformers says that a model scores pairs of texts."""
    return read_object(folder / FILE).get("model_type") == CROSS_ENCODER


def relevance(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the option with what the scores of a cross-encoder go through; none if no file says it.

    Args:
        folder: The model's folder.
        config: Its ``config.json``, where sentence-transformers before 6.0 and before 4.0 has it.

    Raises:
        CommandError: It is not applied here, or the model has a prompt.
    """
    path = folder / FILE
    described = read_object(path) if is_cross_encoder(folder) else {}
    if described.get("default_prompt_name") is not None:
        raise CommandError(f"{path}: default_prompt_name is not obeyed for a cross-encoder; remove it.")
    name = (
        described.get("activation_fn")
        or (config.get("sentence_transformers") or {}).get("activation_fn")
        or config.get("sbert_ce_default_activation_function")
    )
    package, _, last = str(name or "").rpartition(".")
    if not package.startswith("torch."):
        return {}  # code of a repository is never run, as in sentence-transformers
    applied = {name: each for name, each in ACTIVATIONS.items() if each in ("none", "sigmoid")}
    if last not in applied:
        raise CommandError(f"{folder}: activation_fn is {name!r}; {', '.join(applied)} are applied.")
    return {"relevance": applied[last]}


def transformer(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file that describes the module Transformer, and what it says; empty if none does."""
    for kind in KINDS:
        path = folder / f"sentence_{kind}_config.json"
        if described := read_object(path):
            return path, described
    return path, {}


def _kind(folder: Path, module: Any) -> str:
    """Return the class of a module, without its package."""
    name = str(module.get("type", "")) if isinstance(module, dict) else ""
    if not name.startswith(PACKAGE):
        raise CommandError(
            f"{folder / 'modules.json'}: the module {name!r} is not sentence-transformers' own, and code of "
            "a repository is never run: export the whole model to an ONNX file with a sentence_embedding."
        )
    return name.rpartition(".")[2]


def _unknown(folder: Path, module: Mapping[str, Any], problem: str) -> CommandError:
    return CommandError(
        f"{folder / 'modules.json'}: the module {module['type']} {problem}: export the whole model to an "
        "ONNX file with an output sentence_embedding, and serve that file with --task sentence-embeddings."
    )


def _prompts(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    described = read_object(path)
    refuse(path, described, fields_of("sentences"))
    prompts = {name: text for name, text in (described.get("prompts") or {}).items() if text is not None}
    default = described.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise CommandError(
            f"{path}: default_prompt_name is {default!r}, and prompts has {', '.join(prompts)}."
        )
    options: dict[str, Any] = {"prompts": prompts} if prompts else {}
    return {**options, "prompt": prompts[default]} if default is not None else options


def _pooling(path: Path, described: Mapping[str, Any]) -> dict[str, Any]:
    found = described.get("pooling_mode")
    if found is None:
        found = [mode for name, mode in MODES.items() if described.get(name)] or ["mean"]
    modes = [found] if isinstance(found, str) else list(found)
    unknown = [mode for mode in modes if mode not in POOLINGS]
    if unknown:
        raise CommandError(f"{path}: pooling_mode is {unknown[0]!r}; applied are {', '.join(POOLINGS)}.")
    pooled = [POOLINGS[mode] for mode in modes]
    options: dict[str, Any] = {"pooling": pooled[0] if len(pooled) == 1 else pooled}
    return options if described.get("include_prompt", True) else {**options, "include_prompt": False}


def _activation(path: Path, described: Mapping[str, Any], kind: str) -> dict[str, str]:
    if kind != "Dense":
        return {}
    name = described.get("activation_function", "torch.nn.modules.activation.Tanh")
    package, _, last = str(name).rpartition(".")
    if not package.startswith("torch.nn") or last not in ACTIVATIONS:
        raise CommandError(
            f"{path / 'config.json'}: activation_function is {name!r}; {', '.join(ACTIVATIONS)} are applied."
        )
    return {"activation": ACTIVATIONS[last]}


def _weights(path: Path, described: Mapping[str, Any], kind: str) -> dict[str, np.ndarray[Any, Any]]:
    """Read the weights of a layer, float32; a pickle is never read."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    file, prefix = path / WEIGHTS, "linear" if kind == "Dense" else "norm"
    if not file.is_file():
        raise CommandError(f"{file} is missing, the weights of the {kind}; a pickle is never read.")
    try:
        found = load(file.read_bytes())
        parts = ["weight"] if kind == "Dense" and not described.get("bias", True) else ["weight", "bias"]
        arrays = {part: found[f"{prefix}.{part}"].astype(np.float32) for part in parts}
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CommandError(f"{file} cannot be read: {error}.") from None
    expected = described.get("out_features") if kind == "Dense" else described.get("dimension")
    inputs = (described.get("in_features"),) if kind == "Dense" else ()
    if arrays["weight"].shape != (expected, *inputs):
        raise CommandError(
            f"{file} has weights {list(arrays['weight'].shape)}, {path / 'config.json'} others."
        )
    return arrays
