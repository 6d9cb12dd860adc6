"""What a model's result is: as its client says in the OpenAPI document, else as the result looks."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sm.client.results import Boxes, Classes, Masks, ResultKind, Table, Text
from sm.errors import CommandError

KINDS: Mapping[str, type[ResultKind]] = {
    kind.__name__.lower(): kind for kind in (Classes, Boxes, Masks, Text, Table)
}
#: Seconds for the document.
TIMEOUT_S = 10.0


def fetch_declared(url: str, model: str | None, api_key: str) -> ResultKind | None:
    """Return what the box at ``url`` says of the model's result; None if it says nothing.

    Raises:
        CommandError: The box does not answer, or it serves several clients and none is named.
    """
    headers = {"X-Api-Key": api_key} if api_key else {}
    request = urllib.request.Request(f"{url.rstrip('/')}/openapi.json", headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310  (http was looked at)
            schemas = json.loads(answer.read())["components"]["schemas"]
    except urllib.error.HTTPError as error:
        raise CommandError(
            f"{url}/openapi.json answers {error.code}: is it a box, and its key right?"
        ) from None
    except (OSError, ValueError, LookupError) as error:
        raise CommandError(f"{url}/openapi.json cannot be read: {error}.") from None
    clients = {
        name.removesuffix(".Request"): row for name, row in schemas.items() if name.endswith(".Request")
    }
    if model is None and len(clients) > 1:
        raise CommandError(
            f"name the model whose answer is drawn, with --model: {', '.join(sorted(clients))}."
        )
    name = model or next(iter(clients), "")
    return parse(clients.get(name, {}).get("x-result"))


def parse(described: Any) -> ResultKind | None:
    """Return the kind that an ``x-result`` describes; None for one of a later version."""
    kind = KINDS.get(described.get("kind", "")) if isinstance(described, dict) else None
    if kind is None:
        return None
    known = {field.name for field in fields(kind)}
    return kind(**{name: value for name, value in described.items() if name in known})


def guess(result: Any) -> ResultKind | None:
    """Return the kind that a result looks like, for an endpoint whose document cannot be read."""
    for items, rows in {"": result, **(result if isinstance(result, dict) else {})}.items():
        if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
            for kind, member in ((Masks, "mask"), (Boxes, "box")):
                if all(member in row for row in rows):
                    return kind(items=items)
            if all({"label", "score"} <= row.keys() for row in rows):
                return Classes(items=items)
    return None
