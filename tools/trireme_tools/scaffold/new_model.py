"""``sm new-model`` writes a model that its task's class serves; ``sm eject`` writes that class's client."""

from __future__ import annotations

import argparse
import glob
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from string import Template
from typing import Any

from sm.client.payloads import EXAMPLE_PICTURE
from sm.errors import CommandError, StartError
from sm.plugins.checks import check
from sm.plugins.loading import load
from sm.plugins.sources import ClientSource
from sm.router.answers import dumps
from sm.settings import Settings
from sm.triton.tensors import STRINGS
from trireme_extensions.convert.build_request import BuildRequest
from trireme_extensions.convert.graph_runner import session
from trireme_extensions.convert.model_builder import ModelBuilder
from trireme_extensions.convert.onnx_graph import Graph
from trireme_extensions.convert.targets import GRAPH
from trireme_extensions.tasks.checkpoint.files import read_json
from trireme_extensions.tasks.checkpoint.texts import configured_tokenizer
from trireme_extensions.tasks.hub import checkpoint_files
from trireme_extensions.tasks.hugging_face import GRAPHS, OPTIONS, ModelSource, read_folder
from trireme_extensions.tasks.sound import EXAMPLE_SOUND
from trireme_extensions.tasks.task_file import TASK_FILE, task_class
from trireme_tools.build.samples import InProcess
from trireme_tools.progress import Progress
from trireme_tools.scaffold.writing import NAME, TEMPLATES, class_name

HUB = "hf://"
#: The tasks that need a tokenizer.
TEXT_TASKS = (
    "fill-mask",
    "question-answering",
    "sentence-embeddings",
    "text-classification",
    "text2text-generation",
    "token-classification",
    "zero-shot-classification",
)


#: An example of --preprocess.
EXAMPLE_STEPS = '{"resize": 256, "crop": 224, "channels": "RGB", "scale": 0.00392156862745098}'


def read_source(source: str, task: str, labels: Path | None, preprocess: Path | None) -> ModelSource:
    """Read an ONNX file, a folder, or a repository of the hub; the options override what it says.

    Raises:
        CommandError: Something is missing; the sentence names the option that sets it.
    """
    if source.startswith(HUB) or Path(source).is_dir():
        folder = fetch(source.removeprefix(HUB)) if source.startswith(HUB) else Path(source)
        try:
            found = read_folder(folder, task, preprocess=preprocess is not None)
        except CommandError as error:
            graph = next((folder / name for name in GRAPHS if (folder / name).is_file()), None)
            more = _missing(graph, preprocess)[1:] if graph and not task else []
            raise CommandError(" ".join([str(error), *(f"It also {part}." for part in more)])) from None
        if found.task in TEXT_TASKS and "tokenizer.json" not in found.files:
            config = read_json(folder / "config.json")
            found.files["tokenizer.json"] = configured_tokenizer(
                folder, config, _convert_tokenizer(folder), found.task
            )
    elif Path(source).is_file():
        if not task:
            raise CommandError(f"{source} {' and '.join(_missing(Path(source), preprocess))}.")
        found = ModelSource(Path(source), task)
        found.describe(found.read_detector() if task == "object-detection" else {})
        folder = Path(source).parent
        if (folder / "tokenizer.json").is_file():
            text, config = (
                (folder / "tokenizer.json").read_text("utf-8-sig"),
                read_json(folder / "config.json"),
            )
            found.files["tokenizer.json"] = configured_tokenizer(folder, config, text, found.task)
    else:
        raise CommandError(f"{source} does not exist: name an ONNX file, a folder, or hf://owner/name.")
    for name, path in (("labels.txt", labels), ("preprocess.json", preprocess)):
        if path is not None:
            try:
                found.files[name] = path.read_text("utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                raise CommandError(f"{path} cannot be read: {error}.") from None
    if found.task.startswith("image") and "preprocess.json" not in found.files:
        raise CommandError(
            f"{source} does not say how a picture becomes its input: name a file with --preprocess, such as "
            f"{EXAMPLE_STEPS}."
        )
    if found.task in TEXT_TASKS and "tokenizer.json" not in found.files:
        raise CommandError(f"{source} has no tokenizer.json: put it beside the model.")
    return found


def _missing(graph: Path, preprocess: Path | None) -> list[str]:
    """Return all that a graph without a task lacks, each as a part of a sentence."""
    inputs = Graph.read(graph).inputs
    missing = [f"does not say what it does: name it with --task: {OPTIONS}"]
    if preprocess is None and any(len(tensor.shape) == len("NCHW") for tensor in inputs):
        missing.append(f"takes pictures: name a file with --preprocess, such as {EXAMPLE_STEPS}")
    is_of_texts = any(tensor.name == "input_ids" for tensor in inputs)
    if is_of_texts and not graph.with_name("tokenizer.json").is_file():
        missing.append("takes the tokens of texts: put its tokenizer.json beside it")
    return missing


def fetch(name: str) -> Path:
    """Fetch a repository of the hub, without its code."""
    from huggingface_hub import HfApi, snapshot_download

    try:
        info = HfApi().model_info(name)
        files = checkpoint_files([file.rfilename for file in info.siblings or ()])
        # The names are patterns there; a file called a[1] has another pattern.
        return Path(snapshot_download(name, revision=info.sha, allow_patterns=list(map(glob.escape, files))))
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


#: The sample of each task; another one answers with its own.
TEXT = "Ada Lovelace lived in London and wrote the first program."
SAMPLES: dict[str, dict[str, Any]] = {
    "audio-classification": {"audio": EXAMPLE_SOUND},
    "automatic-speech-recognition": {"audio": EXAMPLE_SOUND},
    "fill-mask": {"text": "Ada Lovelace lived in [MASK]."},
    "image-classification": {"image": EXAMPLE_PICTURE},
    "image-embeddings": {"image": EXAMPLE_PICTURE},
    "image-segmentation": {"image": EXAMPLE_PICTURE},
    "object-detection": {"image": EXAMPLE_PICTURE},
    "question-answering": {"question": "Where did Ada live?", "context": TEXT},
    "zero-shot-classification": {"text": TEXT, "labels": ["history", "cooking"]},
}


def run(options: argparse.Namespace) -> int:
    """Write ``model/NAME``, completely or not at all, and print the next step."""
    models = options.into / "model"
    if not NAME.fullmatch(options.name):
        raise CommandError(f"{options.name!r} is not a name: small letters, digits and _, a letter first.")
    source = read_source(options.source, options.task or "", options.labels, options.preprocess)
    graphs = source.graphs(options.name)
    if said := source.read_activation():
        sys.stderr.write(f"{said}\n")
    for target in (models / name for name in graphs):
        if target.exists():
            raise CommandError(f"{target} already exists; nothing was written.")
    settings, progress = Settings.read(os.environ), Progress(sys.stderr)
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-model-", dir=models) as staged:
        described, out = Path(staged) / "described", Path(staged) / "model"
        (described / options.name).mkdir(parents=True)
        source.write_files(described / options.name)
        builder = ModelBuilder(settings.cache, described, progress)
        for name, graph in graphs.items():
            builder.build(BuildRequest(model=name, target="cpu", out=out, source=graph))
        write_golden_answer(out / options.name, source.task)
        for name in reversed(graphs):  # the one with the task's file last
            (out / name).rename(models / name)
    sys.stdout.write(
        f"wrote {models / options.name}, a model for {source.task}\nnext: sm check-client {options.name}\n"
    )
    return 0


def write_golden_answer(model: Path, task: str) -> None:
    """Let the task's class answer a sample with ONNX Runtime in fp32, and keep both.

    Raises:
        CommandError: The model cannot do the task.
    """
    graphs = {folder.name: Graph.read(folder / "1" / GRAPH) for folder in model.parent.iterdir()}
    runs = {name: InProcess(graph, session(graph.path)) for name, graph in graphs.items()}
    own = runs.pop(model.name)
    triton = InProcess(own.graph, own.runner, runs)
    client_source = ClientSource(model.name, model / TASK_FILE, "task")
    try:
        client = load(client_source, triton, model.parent)
        check(client, client_source, triton)
    except StartError as error:
        reason = str(error).rpartition(f"{TASK_FILE}: ")[2]
        raise CommandError(f"the model cannot be served for {task}: {reason}") from None
    payload = SAMPLES.get(task, {"text": TEXT})
    if task == "tabular":
        columns = client.columns  # type: ignore[attr-defined]
        payload = {"rows": [["a" if tensor.datatype == STRINGS else 0 for _, tensor in columns]]}
    answer = json.loads(dumps(client.inference(client.payload.model_validate(payload))))
    (model / "sample").mkdir()
    for name, value in (("payload", payload), ("golden", answer)):
        (model / "sample" / f"{name}.json").write_text(json.dumps(value, indent=2) + "\n", "utf-8")


def eject(options: argparse.Namespace) -> int:
    """Write ``clients/NAME``, which serves the model in place of its task's class."""
    model, client = options.into / "model" / options.name, options.into / "clients" / options.name
    if not (model / TASK_FILE).is_file():
        raise CommandError(f"{model / TASK_FILE} does not exist: sm new-model writes such a model.")
    if client.exists():
        raise CommandError(f"{client} already exists; nothing was written.")
    task = task_class(model / TASK_FILE)
    client.mkdir(parents=True)
    summary = (task.__doc__ or "").splitlines()[0].replace('"""', "'''")
    template = Template((TEMPLATES / "ejected" / "client.py.txt").read_text("utf-8"))
    text = template.substitute(
        name=options.name, task=task.__name__, class_name=class_name(options.name), summary=summary
    )
    (client / "client.py").write_text(text, "utf-8")
    copy_samples(model, client)
    sys.stdout.write(f"wrote {client}; the model keeps {TASK_FILE} with the options of its task\n")
    return 0
