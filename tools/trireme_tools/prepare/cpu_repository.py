"""Assemble a Triton model repository from the descriptions in git and the built models.

Each model's folder gets the merged ``config.pbtxt``, every description that lies beside it in git
(``preprocess.json``), what its recipe built (labels, a vocabulary) and, in version folder 1, the
graph, the python-backend model that runs it, and the manifest of both.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from inspect import getfile
from pathlib import Path

from sm.repository import manifest
from sm.repository.manifest import Manifest
from sm.repository.models import sha256, write_config
from sm.settings import HERE
from trireme_extensions.convert import model_config
from trireme_extensions.convert.build_request import OPTIONS
from trireme_extensions.convert.onnx_graph import Graph
from trireme_extensions.convert.targets import GRAPH, RUNNER, descriptions, link, place_on_cpu
from trireme_tools.build import changes as graph_changes
from trireme_tools.build import golden_data, masks, samples, suppression
from trireme_tools.build.changes import DESCRIPTION, GraphChanges
from trireme_tools.cache import Cache

#: The modules that make a model's files, beside those that are copied.
MODULES = (golden_data, graph_changes, masks, model_config, samples, suppression)
#: The file that says what the repository was made from; Triton ignores files beside the models' folders.
STAMP = ".made-from.json"


class CpuRepository:
    """The repository of the CPU target, in the cache."""

    def __init__(self, cache: Cache, models: Path) -> None:
        self.cache = cache
        self.models = models
        self.path = cache.repositories / "cpu"

    def is_current(self, built: Mapping[str, Path]) -> bool:
        """True if the repository was assembled from ``built``, and no file has changed since."""
        return is_stamped(self.path, self._inputs(built))

    def assemble(self, built: Mapping[str, Path]) -> None:
        """Assemble the repository from ``built``, folders by model name, and replace the present one."""
        with self.cache.scratch_folder() as workshop:
            staged = workshop / "cpu"
            for name, artifact in built.items():
                self._add(staged / name, self.models / name, artifact)
            write_stamp(staged, self._inputs(built))
            self.cache.place(staged, self.path)

    def _add(self, target: Path, source: Path, artifact: Path) -> None:
        version_folder = target / "1"
        version_folder.mkdir(parents=True)
        shutil.copy(source / "config.pbtxt", target)
        for path in descriptions(source):
            shutil.copy(path, target / path.name)
        for path in artifact.iterdir():
            link(path, (version_folder if path.name == GRAPH else target) / path.name)
        origin = f"model/{target.name}/recipe, {artifact.name}"
        run_on_cpu(
            target, source / "config.pbtxt", origin, GraphChanges.read(source), HERE / "clients" / target.name
        )

    def _inputs(self, built: Mapping[str, Path]) -> dict[str, str]:
        files = [
            *RUNNER,
            *golden_data.BESIDE,
            *(Path(getfile(module)) for module in MODULES),
            Path(__file__),
        ]
        for name in built:
            folder = self.models / name
            files += [folder / "config.pbtxt", folder / OPTIONS, *descriptions(folder)]
            files += sorted((HERE / "clients" / name / "sample").glob("*"))
        return {
            **digests(path for path in files if path.exists()),
            "onnxruntime": version("onnxruntime"),
            **{name: str(artifact) for name, artifact in built.items()},
        }


def run_on_cpu(
    model: Path,
    described: Path,
    source: str,
    changes: GraphChanges | None = None,
    client: Path | None = None,
) -> None:
    """Complete a model's folder, with a graph in version 1, so that the CPU target runs it.

    The graph runs as its recipe made it, so there is nothing to compare it with.

    Args:
        model: The folder.
        described: The ``config.pbtxt`` in git.
        source: The graph's source for the manifest.
        changes: Changes to make in the graph.
        client: The client whose samples become the golden data; None for none.
    """
    changes = changes or GraphChanges()
    version_folder = model / "1"
    graph = version_folder / GRAPH
    digest = sha256(graph)
    written = model_config.read(described)
    model_config.check(written, graph, described)
    with tempfile.TemporaryDirectory(dir=model) as workshop:
        graphs = changes.graphs(Graph.read(graph), model / DESCRIPTION, Path(workshop))
        final = model_config.for_cpu(
            model_config.adapt_config(written, changes.names, graphs.served), graphs.served
        )
        if not final.model_warmup:
            final.model_warmup.extend(model_config.from_graph(graphs.served, final.name, 1).model_warmup)
        (model / "config.pbtxt").write_text(write_config(final))
        place_on_cpu(graphs.served, version_folder)
    if client:
        samples.from_samples(Graph.read(graph), graphs.applied, client, model.parent, version_folder)
    Manifest(
        model=model.name,
        target="cpu",
        source=manifest.SourceGraph(name=source, sha256=digest),
        tool=manifest.Tool(name="onnxruntime", version=version("onnxruntime")),
        changes=graphs.applied,
        built=manifest.now(),
    ).write(version_folder)


def digests(files: Iterable[Path]) -> dict[str, str]:
    """Return the sha256 of each file by its path in the checkout, so that checkouts share one repository."""
    return {os.path.relpath(path, HERE): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def write_stamp(folder: Path, inputs: Mapping[str, str]) -> None:
    """Say in a repository what it was made from, and which files it has."""
    (folder / STAMP).write_text(json.dumps({"inputs": inputs, "files": sizes(folder)}))


def is_stamped(folder: Path, inputs: Mapping[str, str]) -> bool:
    """True if a repository was made from ``inputs``, and no file has changed since."""
    try:
        stamp = json.loads((folder / STAMP).read_text())
    except (OSError, ValueError):
        return False
    return bool(stamp == {"inputs": inputs, "files": sizes(folder)})


def sizes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != STAMP and path.suffix != ".pyc"
    }
