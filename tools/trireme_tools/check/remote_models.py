"""Read a running box's models from its v2 routes."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from sm.client.base import ModelMetadata, TensorMetadata
from sm.errors import CommandError

CONNECT_TIMEOUT_S = 10.0
SERIES = re.compile(
    r'trireme_invocation_duration_seconds_sum\{model="(?P<model>[^"]*)",stage="(?P<stage>[^"]*)",'
    r'status="[^"]*"\} (?P<value>\S+)'
)


def metadata(url: str, model: str) -> ModelMetadata:
    """Describe a model. Raises :class:`CommandError` if the box does not have it."""
    served, config = (_get(f"{url}/v2/models/{model}{path}") for path in ("", "/config"))
    batch = int(config.get("max_batch_size", 0))
    return ModelMetadata(
        model,
        tuple(served.get("versions", ())),
        batch,
        _tensors(served["inputs"], batch),
        _tensors(served["outputs"], batch),
    )


def model_of(url: str, client: str) -> str:
    """Return the model of the box's client; empty if it calls none or several."""
    rows = [row for row in _get(f"{url}/models").get("models", ()) if row.get("modelName") == client]
    models = list(rows[0].get("models") or []) if rows else []
    return str(models[0]) if len(models) == 1 else ""


def stages(url: str, client: str) -> dict[str, float]:
    """Return the seconds that the box spent on the client's requests, by stage, from ``/metrics``."""
    series = (SERIES.fullmatch(line) for line in _fetch(f"{url}/metrics").decode().splitlines())
    totals: dict[str, float] = {}
    for match in series:
        if match and match["model"] == client:
            totals[match["stage"]] = totals.get(match["stage"], 0.0) + float(match["value"])
    return totals


def _tensors(rows: Sequence[dict[str, Any]], batch: int) -> dict[str, TensorMetadata]:
    return {
        row["name"]: TensorMetadata(row["name"], row["datatype"], tuple(row["shape"])[1 if batch else 0 :])
        for row in rows
    }


def _get(url: str) -> dict[str, Any]:
    try:
        return dict(json.loads(_fetch(url)))
    except ValueError:
        raise CommandError(f"what answers at {url} is not a box.") from None


def _fetch(url: str) -> bytes:
    if not url.startswith(("http://", "https://")):
        raise CommandError(f"{url} is not an address of a box: it begins with http:// or https://.")
    try:
        with urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT_S) as answer:  # noqa: S310
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        raise CommandError(
            f"{url} answers {error.code}: {error.read()[:200].decode(errors='replace')}"
        ) from None
    except OSError as error:
        raise CommandError(f"no box answers at {url}: {error}.") from None
