"""Lint and render a chart with Helm's own library, in an interpreter that has the library: ``-m`` of this module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import yaml

from sm.commands.progress import Progress
from sm.repository.cache import Cache
from sm.settings import HERE, Settings
from trireme_tools.prepare.packages import Fetcher, Source

#: Helm 4.2.3's own library, with a C interface.
SHA256 = "28cc13abaf134c3a7e37f070c939be8d9cdc9825c3c8b8b2d35161073bcd4578"
HELM = Source("pypi", "helm-python-sdk", "0.2.2", SHA256, 74_972_514, "Apache-2.0")


def fetch_helm(folder: Path) -> Path:
    """Make Helm's library importable from ``folder``, and return the folder."""
    cache, progress = Cache(Settings.read(os.environ).cache), Progress(sys.stderr)
    wheel = Fetcher(cache, progress, os.environ).fetch(HELM, "helm")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def render_chart(helm: Path, chart: Path, name: str, values: dict[str, Any]) -> Any:
    """Return the linter's output and the rendered files, by path. AssertionError with what Helm says if it refuses."""
    command = [sys.executable, "-m", "tests.support.helm_runner", str(chart), name, json.dumps(values)]
    environment = {**os.environ, "PYTHONPATH": f"{helm}{os.pathsep}{HERE}"}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def documents_of(rendered: Any) -> list[dict[str, Any]]:
    texts = [text for path, text in rendered["files"].items() if not path.endswith("NOTES.txt")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def main(chart: str, name: str, values: str) -> None:
    import helm_python as helm  # type: ignore[import-not-found]

    with helm.Chart.load(chart) as loaded:
        given = json.loads(values)
        loaded.validate_schema(given)
        files = loaded.render(given, name=name, namespace="prod")
        sys.stdout.write(json.dumps({"lint": helm.lint(chart), "files": files}))


if __name__ == "__main__":
    main(*sys.argv[1:])
