"""``sm new-model`` writes a model that its task's class serves; ``sm eject`` writes that class's client."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from sm.client.payloads import EXAMPLE_PICTURE
from sm.client.tasks.task_file import TASK_FILE, task_class
from sm.commands.build.build_request import BuildRequest
from sm.commands.build.graph_runner import session
from sm.commands.build.model_builder import ModelBuilder
from sm.commands.build.onnx_graph import Graph
from sm.commands.build.repository_assembly import GRAPH
from sm.commands.build.samples import InProcess
from sm.commands.progress import Progress
from sm.errors import CommandError, StartError
from sm.plugins.loading import ClientSource, load
from sm.plugins.registry import check
from sm.repository.cache import Cache
from sm.router.answers import dumps
from sm.settings import Settings
from trireme_tools.scaffold.model_source import copy_samples, read_source
from trireme_tools.scaffold.writing import NAME, class_name

#: The sample of each task; another one answers with its own.
TEXT = "Ada Lovelace lived in London and wrote the first program."
SAMPLES: dict[str, dict[str, Any]] = {
    "fill-mask": {"text": "Ada Lovelace lived in [MASK]."},
    "image-classification": {"image": EXAMPLE_PICTURE},
    "image-embeddings": {"image": EXAMPLE_PICTURE},
    "object-detection": {"image": EXAMPLE_PICTURE},
    "question-answering": {"question": "Where did Ada live?", "context": TEXT},
    "zero-shot-classification": {"text": TEXT, "labels": ["history", "cooking"]},
}
CLIENT = '''"""The client of {name}. Change what you need of {task}."""

from __future__ import annotations

from sm.client.tasks import {task}


class {class_name}({task}):
    """{summary}"""

    model = "{name}"
'''


def run(options: argparse.Namespace) -> int:
    """Write ``model/NAME``, completely or not at all, and print the next step."""
    target = options.into / "model" / options.name
    if not NAME.fullmatch(options.name):
        raise CommandError(f"{options.name!r} is not a name: small letters, digits and _, a letter first.")
    if target.exists():
        raise CommandError(f"{target} already exists; nothing was written.")
    source = read_source(options.source, options.task or "", options.labels, options.preprocess)
    settings, progress = Settings.read(os.environ), Progress(sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-model-", dir=target.parent) as staged:
        described, out = Path(staged) / "described", Path(staged) / "model"
        (described / options.name).mkdir(parents=True)
        for name, text in source.files.items():
            (described / options.name / name).write_text(text, "utf-8")
        request = BuildRequest(model=options.name, target="cpu", out=out, source=source.graph)
        model = ModelBuilder(Cache(settings.cache), described, progress).build(request)
        write_golden_answer(model, source.task)
        model.rename(target)
    sys.stdout.write(f"wrote {target}, a model for {source.task}\nnext: sm check-client {options.name}\n")
    return 0


def write_golden_answer(model: Path, task: str) -> None:
    """Let the task's class answer a sample with ONNX Runtime in fp32, and keep both.

    Raises:
        CommandError: The model cannot do the task.
    """
    graph = Graph.read(model / "1" / GRAPH)
    triton, client_source = InProcess(graph, session(graph.path)), ClientSource(model.name, model / TASK_FILE)
    try:
        client = load(client_source, triton, model.parent)
        check(client, client_source, triton)
    except StartError as error:
        reason = str(error).rpartition(f"{TASK_FILE}: ")[2]
        raise CommandError(f"the model cannot be served for {task}: {reason}") from None
    payload = SAMPLES.get(task, {"text": TEXT})
    if task == "tabular":
        payload = {"rows": [[0] * len(client.names)]}  # type: ignore[attr-defined]
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
    text = CLIENT.format(
        name=options.name, task=task.__name__, class_name=class_name(options.name), summary=summary
    )
    (client / "client.py").write_text(text, "utf-8")
    copy_samples(model, client)
    sys.stdout.write(f"wrote {client}; the model keeps {TASK_FILE} with the options of its task\n")
    return 0
