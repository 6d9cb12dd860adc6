"""Read a model's task, labels, tokenizer and preprocessing from files of Hugging Face's form."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sm.client.tasks import TASKS
from sm.errors import CommandError

HUB = "hf://"
#: What is fetched of a repository: no Python code, no pickle.
FETCHED = ("*.json", "*.txt", "*.onnx", "*.onnx_data", "*.safetensors")
GRAPHS = ("model.onnx", "onnx/model.onnx")
#: The task of an architecture, by the end of its name.
ARCHITECTURES = {
    "ForMaskedLM": "fill-mask",
    "ForObjectDetection": "object-detection",
    "ForImageClassification": "image-classification",
    "ForQuestionAnswering": "question-answering",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
}
POOLINGS = {"cls_token": "cls", "mean_tokens": "mean", "lasttoken": "last"}
#: What transformers writes if a tokenizer has no limit.
NO_LIMIT = 10**9
OPTIONS = ", ".join(TASKS)


@dataclass
class ModelSource:
    """A graph, or a folder to export, and the files that describe it."""

    #: An ONNX file, or a folder that torch exports.
    graph: Path | str
    task: str
    #: The text of each file to write beside the model, by name.
    files: dict[str, str] = field(default_factory=dict)

    def describe(self, task: Mapping[str, Any]) -> None:
        """Set the options of ``task.json``."""
        self.files["task.json"] = _json({"task": self.task, **task})


def read_source(source: str, task: str, labels: Path | None, preprocess: Path | None) -> ModelSource:
    """Read an ONNX file, a folder, or a repository of the hub; the options override what it says.

    Raises:
        CommandError: Something is missing; the sentence names the option that sets it.
    """
    if source.startswith(HUB):
        found = read_folder(fetch(source.removeprefix(HUB)), task)
    elif Path(source).is_dir():
        found = read_folder(Path(source), task)
    elif Path(source).is_file():
        if not task:
            raise CommandError(f"{source} does not say what it does: name it with --task: {OPTIONS}.")
        found = ModelSource(Path(source), task)
        found.describe({})
        beside = Path(source).parent / "tokenizer.json"
        if beside.is_file():
            found.files["tokenizer.json"] = beside.read_text("utf-8")
    else:
        raise CommandError(f"{source} does not exist: name an ONNX file, a folder, or hf://owner/name.")
    for name, path in (("labels.txt", labels), ("preprocess.json", preprocess)):
        if path is not None:
            try:
                found.files[name] = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise CommandError(f"{path} cannot be read: {error}.") from None
    if found.task in ("image-classification", "image-embeddings") and "preprocess.json" not in found.files:
        raise CommandError(
            f"{source} does not say how a picture becomes its input: name a file with --preprocess, such as "
            '{"resize": 256, "crop": 224, "channels": "RGB", "scale": 0.00392156862745098}.'
        )
    if found.task in TEXT_TASKS and "tokenizer.json" not in found.files:
        raise CommandError(f"{source} has no tokenizer.json: put it beside the model.")
    return found


#: The tasks that need a tokenizer.
TEXT_TASKS = (
    "fill-mask",
    "question-answering",
    "sentence-embeddings",
    "text-classification",
    "token-classification",
    "zero-shot-classification",
)


def fetch(name: str) -> Path:
    """Fetch a repository of the hub, without its code."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(FETCHED)))
    except Exception as error:  # the library's own classes, and those of the network
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CommandError(f"{HUB}{name} cannot be fetched: {reason}.") from None


def read_folder(folder: Path, task: str) -> ModelSource:
    """Read a folder of Hugging Face's form."""
    config = _read(folder / "config.json")
    task = task or _task_of(folder, config)
    graph = next((folder / name for name in GRAPHS if (folder / name).is_file()), str(folder))
    found = ModelSource(graph, task)
    if config:
        found.files["config.json"] = _json(config)
    labels = config.get("id2label")
    if labels and task.endswith(("classification", "detection")):
        found.files["labels.txt"] = "\n".join(labels[key] for key in sorted(labels, key=int)) + "\n"
    options: dict[str, Any] = {}
    if task in TEXT_TASKS:
        found.files["tokenizer.json"] = _tokenizer(folder)
        options |= _limits(folder, config)
        if config.get("problem_type") == "multi_label_classification":
            options["activation"] = "sigmoid"
        if task == "sentence-embeddings":
            options |= _pooling(folder)
    elif (folder / "preprocessor_config.json").is_file():
        found.files["preprocess.json"] = _json(
            # A detector sees the whole picture.
            _preprocessing(_read(folder / "preprocessor_config.json"))
            | ({"fit": "squash"} if task == "object-detection" else {})
        )
    found.describe(options)
    return found


def _task_of(folder: Path, config: Mapping[str, Any]) -> str:
    if (folder / "modules.json").is_file():
        return "sentence-embeddings"
    names = config.get("architectures") or [""]
    for end, task in ARCHITECTURES.items():
        if names[0].endswith(end):
            return task
    raise CommandError(
        f"{folder / 'config.json'} names no known task (architectures: {', '.join(names) or 'none'}): name "
        f"it with --task: {OPTIONS}."
    )


def _tokenizer(folder: Path) -> str:
    """Return ``tokenizer.json``, or that of a tokenizer of transformers' own classes."""
    path = folder / "tokenizer.json"
    config = _read(folder / "tokenizer_config.json")
    if "AutoTokenizer" in config.get("auto_map", {}) and not path.is_file():
        raise CommandError(
            f"the tokenizer of {folder} needs Python code of its repository, which is never run here: "
            "convert it to tokenizer.json where you trust that code."
        )
    if path.is_file():
        return path.read_text("utf-8")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, use_fast=True)
        converted: str = tokenizer.backend_tokenizer.to_str()
    except Exception as error:  # transformers has no class for a tokenizer that is not there
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CommandError(f"{path} is missing, and cannot be made: {reason}.") from None
    return converted


def _limits(folder: Path, config: Mapping[str, Any]) -> dict[str, int]:
    lengths = (
        _read(folder / "sentence_bert_config.json").get("max_seq_length"),
        _read(folder / "tokenizer_config.json").get("model_max_length"),
        config.get("max_position_embeddings"),
    )
    known = [int(length) for length in lengths if length and length < NO_LIMIT]
    return {"max_length": min(known)} if known else {}


def _pooling(folder: Path) -> dict[str, Any]:
    modules = _read(folder / "modules.json")
    kinds = {str(module["type"]).rpartition(".")[2]: module["path"] for module in modules or ()}
    pooling = _read(folder / kinds.get("Pooling", "1_Pooling") / "config.json")
    modes = [mode for mode in POOLINGS if pooling.get(f"pooling_mode_{mode}")]
    if pooling and not modes:
        raise CommandError(f"{folder} pools in another way than {', '.join(POOLINGS.values())}.")
    return {
        "pooling": POOLINGS[modes[0]] if modes else "mean",
        "normalise": not modules or "Normalize" in kinds,
    }


def _preprocessing(config: Mapping[str, Any]) -> dict[str, Any]:
    """Turn ``preprocessor_config.json`` into ``preprocess.json``."""
    size: Any = config.get("size", 224)
    crop: Any = config.get("crop_size") if config.get("do_center_crop") else None
    keeps_ratio = isinstance(size, dict) and "shortest_edge" in size
    side = size if isinstance(size, int) else size["shortest_edge" if keeps_ratio else "height"]
    is_normalised = config.get("do_normalize", True)
    return {
        "resize": side,
        "crop": (crop["height"] if isinstance(crop, dict) else crop) or side,
        "fit": "crop" if crop or keeps_ratio else "squash",
        "channels": "RGB",
        "scale": config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0,
        "mean": config["image_mean"] if is_normalised else [0.0, 0.0, 0.0],
        "std": config["image_std"] if is_normalised else [1.0, 1.0, 1.0],
    }


def _read(path: Path) -> Any:
    """Return the JSON of a file; an empty object if it does not exist."""
    try:
        return json.loads(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise CommandError(f"{path} is not JSON: {error}.") from None


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def copy_samples(model: Path, client: Path) -> None:
    """Copy the samples of a model to its client."""
    if (model / "sample").is_dir():
        shutil.copytree(model / "sample", client / "sample")
