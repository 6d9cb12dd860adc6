"""Lint and render a chart with Helm's own library, in an interpreter that has the library: ``-m`` of this module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from sm.settings import HERE, Settings
from trireme_tools.cache import Cache
from trireme_tools.prepare.packages import Fetcher, PackageFile
from trireme_tools.progress import Progress

#: Helm 4.2.3's own library, with a C interface.
SHA256 = "28cc13abaf134c3a7e37f070c939be8d9cdc9825c3c8b8b2d35161073bcd4578"
HELM = PackageFile("pypi", "helm-python-sdk", "0.2.2", SHA256, 74_972_514, "Apache-2.0")


def fetch_helm(folder: Path) -> Path:
    """Make Helm's library importable from ``folder``, and return the folder."""
    cache, progress = Cache(Settings.read(os.environ).cache), Progress(sys.stderr)
    wheel = Fetcher(cache, progress, os.environ).fetch(HELM, "helm")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def render_chart(helm: Path, chart: Path, name: str, values: dict[str, Any]) -> Any:
    """Return the linter's output and the rendered files, by path. AssertionError with what Helm says if it refuses."""
    return _run(helm, "render", str(chart), name, json.dumps(values))


def try_values(helm: Path, chart: Path, texts: Sequence[str]) -> list[Any]:
    """Render a chart with each values file; return the files as :func:`render_chart` does, or what Helm says."""
    answers: list[Any] = _run(helm, "try", str(chart), json.dumps(list(texts)))
    return answers


def read_yaml(helm: Path, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return what Go reads in documents of YAML, in Helm and in kubectl."""
    documents: list[dict[str, Any]] = _run(helm, "read", json.dumps(list(texts)))
    return documents


def _run(helm: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "tests.support.helm_runner", *words]
    environment = {**os.environ, "PYTHONPATH": f"{helm}{os.pathsep}{HERE}"}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def documents_of(rendered: Any) -> list[dict[str, Any]]:
    texts = [text for path, text in rendered["files"].items() if not path.endswith("NOTES.txt")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def _render(chart: Any, name: str, values: dict[str, Any]) -> Any:
    chart.validate_schema(values)
    return chart.render(values, name=name, namespace="prod")


def main(verb: str, *words: str) -> None:
    import helm_python as helm  # type: ignore[import-not-found]

    answer: Any
    if verb == "read":
        answer = [helm.values_from_yaml(text) for text in json.loads(words[0])]
    else:
        with helm.Chart.load(words[0]) as chart:
            if verb == "render":
                files = _render(chart, words[1], json.loads(words[2]))
                answer = {"lint": helm.lint(words[0]), "files": files}
            else:
                answer = []
                for text in json.loads(words[1]):
                    try:
                        answer.append({"files": _render(chart, "cats", helm.values_from_yaml(text))})
                    except helm.HelmError as error:
                        answer.append(str(error))
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
