"""Read a folder of Hugging Face's form, and build what ``HF_MODEL_ID`` names for this machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sm.errors import CommandError, StartError
from sm.repository.machine import Machine
from sm.repository.model_makers import ModelMaker, RepositorySource
from sm.settings import PACKAGE, Settings
from trireme_extensions.tasks.checkpoint import texts
from trireme_extensions.tasks.checkpoint.activations import REMAINING, last_activation
from trireme_extensions.tasks.checkpoint.detectors import detector
from trireme_extensions.tasks.checkpoint.files import read_json, read_table
from trireme_extensions.tasks.checkpoint.generation_config import generation
from trireme_extensions.tasks.checkpoint.pictures import picture_steps
from trireme_extensions.tasks.checkpoint.sentences import is_cross_encoder, relevance, sentences
from trireme_extensions.tasks.checkpoint.sounds import extractor, sounds
from trireme_extensions.tasks.task_table import TASKS

GRAPHS = ("model.onnx", "onnx/model.onnx")
#: The graphs of an encoder with a decoder.
ENCODERS, DECODER = ("encoder_model.onnx", "onnx/encoder_model.onnx"), "decoder_model.onnx"
TEXT_TO_TEXT = "text2text-generation"
#: Hugging Face's name of a translation between two languages.
TRANSLATION = re.compile(r"translation_\w+_to_\w+")
#: The tasks of sound.
SOUND_TASKS = ("automatic-speech-recognition", "audio-classification")
#: The tasks whose scores become probabilities, and what does that for each ``problem_type``.
CLASSIFICATIONS = ("audio-classification", "image-classification", "text-classification")
ACTIVATIONS = {
    "multi_label_classification": "sigmoid",
    "regression": "none",
}
#: The tasks that make probabilities of a graph's scores.
ACTIVATED = (
    *CLASSIFICATIONS,
    *("fill-mask", "question-answering", "token-classification", "zero-shot-classification"),
)
#: The outputs that those tasks read first, if a graph has more than one.
SCORES = ("logits", "start_logits")
OPTIONS = ", ".join(TASKS)


@dataclass
class ModelSource:
    """A graph, or a folder to export, and the files that describe it."""

    #: An ONNX file, or a folder that torch exports.
    graph: Path | str
    task: str
    #: The content of each file to write beside the model, by name.
    files: dict[str, str | bytes] = field(default_factory=dict)

    def describe(self, options: Mapping[str, Any]) -> None:
        """Set the options of ``task.json``."""
        self.files["task.json"] = _json({"task": self.task, **options})

    def read_detector(self) -> dict[str, Any]:
        """Return the options of a detector's graph; its labels and steps count if no file does."""
        options, labels, steps = detector(Path(self.graph))
        if labels:
            self.files.setdefault("labels.txt", labels)
        if steps:
            self.files.setdefault("preprocess.json", _json(steps))
        return options

    def read_activation(self) -> str:
        """Note in ``task.json`` what the graph has done with its scores already.

        Returns:
            What was written and why, in a sentence; empty if nothing was.
        """
        if self.task not in ACTIVATED or not isinstance(self.graph, Path):
            return ""
        found = last_activation(self.graph)
        name = next((name for name in SCORES if name in found), "") or next(filter(found.get, found), "")
        if not found.get(name):
            return ""
        remaining, described = REMAINING[found[name]], json.loads(self.files["task.json"])
        described["activation"] = remaining
        if described.get("relevance", "none") != "none":
            described["relevance"] = remaining
        self.files["task.json"] = _json(described)
        return f'{name} comes from a {found[name]}: task.json says "activation": "{remaining}"'

    def write_files(self, folder: Path) -> None:
        """Write the files into a model's folder."""
        for name, content in self.files.items():
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    def graphs(self, name: str) -> dict[str, Path | str]:
        """Return the graph of each model, by the model's name.

        Raises:
            CommandError: An encoder has no decoder beside it.
        """
        if self.task != TEXT_TO_TEXT:
            return {name: self.graph}
        decoder = Path(self.graph).with_name(DECODER)
        if not (isinstance(self.graph, Path) and decoder.is_file()):
            raise CommandError(
                f"{ENCODERS[0]} and {DECODER} are not both there: optimum-cli export onnx --task "
                f"{TEXT_TO_TEXT} writes them."
            )
        return {name: self.graph, f"{name}_decoder": decoder}


def make(source: RepositorySource, settings: Settings, machine: Machine, repository: Path) -> str:
    """Make a repository of the model in a folder. Returns what was read from its graph, in a sentence.

    Raises:
        StartError: The folder lacks something, or its graph cannot do the task.
    """
    folder, subject = source
    try:
        found = read_folder(folder, settings.task, "HF_TASK")
        name = re.sub(r"\W+", "_", folder.resolve().name).lower()
        graphs, said = found.graphs(name), found.read_activation()
    except CommandError as error:
        raise StartError(f"{subject}: {error}") from None
    if not isinstance(found.graph, Path):
        raise StartError(
            f"{subject}: there is no {' or '.join(GRAPHS)} in {folder}. Nothing is exported at a start: let "
            "sm new-model do it on a machine with a network, or name hf://owner/name with a graph."
        )
    target = "onnxruntime" if machine.has_backend("onnxruntime", ()) else "cpu"
    for model, graph in graphs.items():
        command = ("-m", "sm.cli", "build-model", model, "--target", target, "--out", str(repository))
        built = subprocess.run(
            (sys.executable, *command, "--source", str(Path(graph).absolute())),
            cwd=PACKAGE.parent,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if built.returncode:
            line = (built.stderr.strip().splitlines() or ["the build failed"])[-1]
            raise StartError(f"{subject}: {line}")
    found.write_files(repository / name)
    return said


def read_folder(folder: Path, task: str, option: str = "--task", preprocess: bool = False) -> ModelSource:
    """Read a folder of Hugging Face's form.

    Args:
        folder: The folder.
        task: Empty: its files say it.
        option: What may name the task.
        preprocess: The caller has a ``preprocess.json``, which counts.
    """
    config = read_json(folder / "config.json")
    asked = task
    aliases = read_table("types")["tasks"]
    task = aliases.get(task, TEXT_TO_TEXT if TRANSLATION.fullmatch(task) else task)
    task = task or _task_of(folder, config, option)
    if task not in TASKS:
        raise CommandError(f"{option} is {task!r}; there are: {OPTIONS}.")
    names = ENCODERS if task == TEXT_TO_TEXT else GRAPHS
    found = ModelSource(
        next((folder / name for name in names if (folder / name).is_file()), str(folder)), task
    )
    labels, options = config.get("id2label"), dict[str, Any]()
    if config:
        found.files["config.json"] = _json(config)
    if labels and task.endswith(("classification", "detection", "segmentation")):
        found.files["labels.txt"] = "\n".join(labels[key] for key in sorted(labels, key=int)) + "\n"
    if task.startswith(("image", "object")):
        if not preprocess and (steps := picture_steps(folder, config)):
            found.files["preprocess.json"] = _json(steps)
    elif task in SOUND_TASKS:
        options = sounds(folder, task == "automatic-speech-recognition")
        if vocabulary := read_json(folder / "vocab.json"):
            found.files["vocab.json"] = _json(vocabulary)
    elif task != "tabular":
        if (folder / "tokenizer.json").is_file():
            text = (folder / "tokenizer.json").read_text("utf-8-sig")
            found.files["tokenizer.json"] = texts.configured_tokenizer(folder, config, text, task)
        options = texts.max_length(folder, config)
        if task == "sentence-embeddings":
            more, arrays = sentences(folder)
            options |= more
            found.files |= arrays
        if task == TEXT_TO_TEXT:
            options |= generation(folder, config, asked)
    if task == "object-detection" and isinstance(found.graph, Path):
        options |= found.read_detector()
    if task in CLASSIFICATIONS:
        options |= _activation(config)
    if task == "text-classification":
        options |= relevance(folder, config)
    found.describe(options)
    return found


def _activation(config: Mapping[str, Any]) -> dict[str, str]:
    """Say how the scores of a classifier become probabilities, as transformers' pipelines decide it."""
    found = ACTIVATIONS.get(config.get("problem_type") or "")
    return {"activation": found} if found else {}


def _task_of(folder: Path, config: Mapping[str, Any], option: str) -> str:
    if (folder / "modules.json").is_file() and not is_cross_encoder(folder):
        return "sentence-embeddings"
    names = config.get("architectures") or [""]
    is_sound = "sampling_rate" in extractor(folder)[1]
    for end, task in read_table("types")["sound_architectures" if is_sound else "architectures"].items():
        if names[0].endswith(end):
            return str(task)
    raise CommandError(
        f"{folder / 'config.json'} names no known task (architectures: {', '.join(names) or 'none'}): name "
        f"it with {option}: {OPTIONS}."
    )


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


#: A row of the door ``sm.model_makers``.
MAKER = ModelMaker(make)
