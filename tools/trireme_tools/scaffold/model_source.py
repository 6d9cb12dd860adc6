"""Find what ``sm new-model`` is given: an ONNX file, a folder of Hugging Face's form, or one of its hub."""

from __future__ import annotations

import shutil
from pathlib import Path

from sm.errors import CommandError
from sm.server.sources import OPTIONS, ModelSource, read_folder, read_json

HUB = "hf://"
#: What is fetched of a repository: no Python code, no pickle.
FETCHED = ("*.json", "*.txt", "*.onnx", "*.onnx_data", "*.safetensors")
#: The tasks that need a tokenizer.
TEXT_TASKS = (
    "fill-mask",
    "question-answering",
    "sentence-embeddings",
    "text-classification",
    "token-classification",
    "zero-shot-classification",
)


def read_source(source: str, task: str, labels: Path | None, preprocess: Path | None) -> ModelSource:
    """Read an ONNX file, a folder, or a repository of the hub; the options override what it says.

    Raises:
        CommandError: Something is missing; the sentence names the option that sets it.
    """
    if source.startswith(HUB) or Path(source).is_dir():
        folder = fetch(source.removeprefix(HUB)) if source.startswith(HUB) else Path(source)
        found = read_folder(folder, task)
        if found.task in TEXT_TASKS and "tokenizer.json" not in found.files:
            found.files["tokenizer.json"] = _convert_tokenizer(folder)
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


def fetch(name: str) -> Path:
    """Fetch a repository of the hub, without its code."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(FETCHED)))
    except Exception as error:  # the library's own classes, and those of the network
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CommandError(f"{HUB}{name} cannot be fetched: {reason}.") from None


def _convert_tokenizer(folder: Path) -> str:
    """Return ``tokenizer.json`` for the files of a tokenizer of transformers' own classes."""
    if "AutoTokenizer" in read_json(folder / "tokenizer_config.json").get("auto_map", {}):
        raise CommandError(
            f"the tokenizer of {folder} needs Python code of its repository, which is never run here: "
            "convert it to tokenizer.json where you trust that code."
        )
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, use_fast=True)
        converted: str = tokenizer.backend_tokenizer.to_str()
    except Exception as error:  # transformers has no class for a tokenizer that is not there
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CommandError(f"{folder / 'tokenizer.json'} is missing, and cannot be made: {reason}.") from None
    return converted


def copy_samples(model: Path, client: Path) -> None:
    """Copy the samples of a model to its client."""
    if (model / "sample").is_dir():
        shutil.copytree(model / "sample", client / "sample")
