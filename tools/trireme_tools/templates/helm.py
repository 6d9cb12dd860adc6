"""The deployment as a Helm chart: the files of ``deploy/helm``, with values from options."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from sm import __version__
from sm.errors import CommandError
from trireme_tools.templates import kubernetes
from trireme_tools.templates.stack import Stack


def write(stack: Stack, folder: Path) -> None:
    """Write the chart.

    Raises :class:`CommandError` for options that only SageMaker has, or a folder with other files.
    """
    if folder.exists() and not (folder / "Chart.yaml").is_file() and any(folder.iterdir()):
        raise CommandError(f"{folder} has files that are not a Helm chart: name another folder with --out.")
    kubernetes.check(stack)
    chart = {"name": stack.plan.name, "version": __version__, "appVersion": __version__}
    try:
        shutil.copytree(kubernetes.FILES / "helm", folder, dirs_exist_ok=True)
        for file, values in (("Chart.yaml", chart), ("values.yaml", kubernetes.values(stack))):
            path = folder / file
            path.write_text("\n".join(fill(path.read_text(), values)) + "\n")
    except OSError as error:
        raise CommandError(
            f"{folder} cannot be written ({error.strerror}): name another with --out."
        ) from error


def fill(text: str, values: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a file with other values of its first level; its comments stay."""
    is_replaced = False
    for line in text.splitlines():
        name, is_member, _ = line.partition(":")
        if is_member and name.isalpha():
            is_replaced = name in values
            if is_replaced:
                yield yaml.safe_dump({name: values[name]}, sort_keys=False, allow_unicode=True).rstrip()
        if not (is_replaced and line.strip() and not line.startswith("#")):
            yield line
