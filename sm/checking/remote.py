"""The models of a box that runs, as its v2 routes describe them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from sm.base import ModelMetadata, TensorMetadata
from sm.errors import StartError

SECONDS = 10.0


def metadata(url: str, model: str) -> ModelMetadata:
    """What the model takes and gives; :class:`StartError` if the box has none of that name."""
    said, config = (_get(f"{url}/v2/models/{model}{more}") for more in ("", "/config"))
    batch = int(config.get("max_batch_size", 0))
    return ModelMetadata(
        model,
        tuple(said.get("versions", ())),
        batch,
        _tensors(said["inputs"], batch),
        _tensors(said["outputs"], batch),
    )


def _tensors(rows: Sequence[dict[str, Any]], batch: int) -> dict[str, TensorMetadata]:
    return {
        row["name"]: TensorMetadata(row["name"], row["datatype"], tuple(row["shape"])[1 if batch else 0 :])
        for row in rows
    }


def _get(url: str) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise StartError(f"{url} is no address of a box: it begins with http:// or https://.")
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:  # noqa: S310
            return dict(json.loads(answer.read()))
    except urllib.error.HTTPError as error:
        raise StartError(
            f"{url} answers {error.code}: {error.read()[:200].decode(errors='replace')}"
        ) from None
    except (OSError, ValueError) as error:
        raise StartError(f"no box answers at {url}: {error}.") from None
