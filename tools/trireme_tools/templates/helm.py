"""The deployment as a Helm chart: the documents of ``kubernetes``, with expressions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sm import __version__
from sm.errors import CommandError
from trireme_tools.templates import kubernetes, yaml_text
from trireme_tools.templates.stack import Stack
from trireme_tools.templates.values import ChartValues, GivenValues
from trireme_tools.templates.yaml_text import When

#: What each value is for, as a comment in ``values.yaml``.
COMMENTS = {
    "image": "The image, with its tag or digest.",
    "pullPolicy": "Always, IfNotPresent or Never.",
    "replicas": "Pods, if autoscaling is off.",
    "port": "The port of the box and of the Service.",
    "env": "Environment variables of the box: 'sm settings' lists them. Each value is a text.",
    "serviceAccount": "The pods' service account.",
    "models": "A volume claim with the model repository, and a folder on it; none if the image has models.",
    "resources": "The resources of a pod. /dev/shm counts against the memory limit.",
    "sharedMemory": "The size of /dev/shm, through which large tensors go.",
    "startupSeconds": "Seconds until /ping must answer 200.",
    "preStopSeconds": "Seconds for which an ending pod goes on serving, until no more requests reach it.",
    "drainSeconds": "Seconds that running invocations then get to finish.",
    "autoscaling": "Pods are added by the invocations in flight in each, and by percent of requested CPU.",
    "disruptionBudget": "Let a drained node take one pod at a time.",
    "serviceMonitor": "Have Prometheus' operator read /metrics. It needs the operator's definitions.",
    "networkPolicy": "Let in pods of this namespace and of namespaces labelled trireme/access=true; let"
    " nothing out, or with callsOut DNS, HTTPS and OTLP.",
    "annotations": "Annotations of the pods.",
}
NOTES = """{{ .Release.Name }} is ready when this ends:

  kubectl -n {{ .Release.Namespace }} rollout status deployment/{{ .Release.Name }}

Then send it a request:

  kubectl -n {{ .Release.Namespace }} port-forward service/{{ .Release.Name }} {{ .Values.port }} &
  curl localhost:{{ .Values.port }}/ping
"""
#: JSON schema's names of Python's types.
JSON_TYPES = {str: "string", bool: "boolean", int: "integer", dict: "object"}


def write(stack: Stack, folder: Path) -> None:
    """Write the chart.

    Raises :class:`CommandError` for options that only SageMaker has, or a folder with other files.
    """
    if folder.exists() and not (folder / "Chart.yaml").is_file() and any(folder.iterdir()):
        raise CommandError(f"{folder} has files that are not a Helm chart: name another folder with --out.")
    kubernetes.check(stack)
    values = kubernetes.values(stack)
    try:
        for name, text in files(stack.plan.name, values):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    except OSError as error:
        raise CommandError(
            f"{folder} cannot be written ({error.strerror}): name another with --out."
        ) from error


def files(name: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the chart's files, each by its path and its text."""
    chart_values = {key: value for key, value in values.items() if key != "name"}
    yield "Chart.yaml", yaml_text.document(chart_document(name))
    yield "values.yaml", "\n".join(_commented(chart_values))
    yield "values.schema.json", json.dumps(schema(chart_values), indent=2) + "\n"
    yield "templates/NOTES.txt", NOTES
    for document in kubernetes.documents(ChartValues(GivenValues(values))):
        if isinstance(document, When):
            content = document.value
            text = f"{{{{- if {document.condition} }}}}\n{yaml_text.document(content)}{{{{- end }}}}\n"
        else:
            content, text = document, yaml_text.document(document)
        yield f"templates/{content['kind'].lower()}.yaml", text


def chart_document(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v2",
        "name": name,
        "description": "A box with nginx, a router with client plugins, and a local Triton",
        "type": "application",
        "version": __version__,
        "appVersion": __version__,
        # The first release with autoscaling/v2.
        "kubeVersion": ">=1.23.0-0",
    }


def schema(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the types of the values, so that Helm refuses a misspelt or misplaced one."""
    return {"$schema": "http://json-schema.org/draft-07/schema#", **_schema(dict(values), closed=True)}


def _schema(value: Any, *, closed: bool = False) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {"type": JSON_TYPES[type(value)]}
    # Helm adds these to every chart's values.
    properties = {name: _schema(member) for name, member in value.items()}
    return {
        "type": "object",
        "properties": {**properties, "global": {"type": "object"}} if closed else properties,
        **({"additionalProperties": False} if closed else {}),
    }


def _commented(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        yield f"# {COMMENTS[name]}"
        yield yaml_text.document({name: value})
