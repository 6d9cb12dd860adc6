"""Put the OpenAPI document together."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sm import __version__
from sm.router.openapi import object_schemas
from sm.router.openapi.error_schemas import responses
from sm.router.openapi.parts import Json, failures
from sm.router.openapi.paths import METHODS, paths
from sm.router.openapi.schemas import COMMON, Described, of_client

SECURITY_SCHEMES: Json = {
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "bearer": {"type": "http", "scheme": "bearer"},
}
PUBLIC_PATHS = ("/", "/docs", "/dashboard", "/page/{name}", "/ping")


def document(clients: Sequence[Described], s3: bool = False) -> Json:
    """Return the OpenAPI 3.1 document.

    Args:
        clients: Descriptions by :func:`~sm.router.openapi.client_schemas.describe_client`.
        s3: True if payloads and results in S3 are allowed.
    """
    schemas = {**COMMON}
    for client in clients:
        schemas |= {**client["schemas"], **of_client(client)}
        if s3:
            object_schemas.add(schemas, client)
    _set_titles(schemas, {client["name"] for client in clients})
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Trireme",
            "version": __version__,
            "description": "A SageMaker container: clients picked by `modelname`, Triton behind them.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": _with_security(paths(clients)),
        # An empty object makes the others optional: a box may require API keys.
        "security": [{}, *({scheme: []} for scheme in SECURITY_SCHEMES)],
        "components": {
            "schemas": schemas,
            "responses": responses(clients),
            "securitySchemes": SECURITY_SCHEMES,
        },
    }


def _set_titles(schemas: Json, payloads: set[str]) -> None:
    """Give each schema a title of its own, such as ResnetOptions: generators name their classes by it."""
    taken: set[str] = set()
    for name in sorted(schemas, key=lambda name: "." in name or name in payloads):  # The box's own first.
        words = re.findall(r"[0-9A-Za-z]+", f"{name}.Payload" if name in payloads else name)
        title = base = "".join(word[0].upper() + word[1:] for word in words)
        number = 1
        while title in taken:
            number += 1
            title = f"{base}{number}"
        taken.add(title)
        schemas[name] = {**schemas[name], "title": title}


def _with_security(described: Json) -> Json:
    """Add the errors for an API key that is missing, wrong or used too often."""
    for path, item in described.items():
        for method in METHODS & item.keys():
            operation = item[method]
            if path in PUBLIC_PATHS:
                operation["security"] = []
            else:
                operation["responses"] = {**failures(401, 403, 429), **operation["responses"]}
    return described
