"""Put the OpenAPI document together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sm import __version__, errors
from sm.control.openapi.parts import EXAMPLE_ID, Json, answer, failures, ref
from sm.control.openapi.paths import METHODS, paths
from sm.control.openapi.schemas import COMMON, Described, allow_objects, of_client

SECURITY_SCHEMES: Json = {
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "bearer": {"type": "http", "scheme": "bearer"},
}
#: Not in the document: no caller receives the first, a client's script chooses the status of the second, and
#: callers receive the third as a BadInput.
UNDOCUMENTED = (errors.CallerGone, errors.ChosenStatus, errors.WrongTensor)
PUBLIC_PATHS = ("/", "/docs", "/dashboard", "/page/{name}", "/ping")


def document(clients: Sequence[Described], s3: bool = False) -> Json:
    """Return the OpenAPI 3.1 document.

    Args:
        clients: Descriptions by :func:`~sm.router.client_schemas.describe_client`.
        s3: True if payloads and results in S3 are allowed.
    """
    schemas = {**COMMON}
    for client in clients:
        schemas |= {**client["schemas"], **of_client(client)}
        if s3:
            allow_objects(schemas, client)
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


def responses(clients: Sequence[Described]) -> Json:
    """Return ``Error404`` and the others; the 422 shows each client's error for an empty payload."""
    shared_responses = {
        f"Error{status}": _response(status) for status in sorted({kind.status for kind in kinds()})
    }
    client_examples = {
        client["name"]: {"value": client["error_example"]} for client in clients if client["error_example"]
    }
    _examples(shared_responses["Error422"]).update(client_examples)
    return {
        **shared_responses,
        "Error424": answer(
            "The form in which SageMaker's runtime passes on every error of the box.", ref("ModelError")
        ),
    }


def kinds() -> Iterator[type[errors.TriremeError]]:
    """Yield the error classes that callers receive, the most common first."""
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.TriremeError) and kind not in UNDOCUMENTED:
            yield kind


def _response(status: int) -> Json:
    matching = [kind for kind in kinds() if kind.status == status]
    description = " ".join(
        (kind.__doc__ or "").split("\n")[0] for kind in matching if kind is not errors.TriremeError
    )
    response = answer(description, ref("Error"))
    _examples(response).update({kind.code: {"value": _example(kind)} for kind in matching})
    if any(kind.retry_after for kind in matching):
        response["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return response


def _examples(response: Json) -> Json:
    examples: Json = response["content"]["application/json"].setdefault("examples", {})
    return examples


def _example(kind: type[errors.TriremeError]) -> Json:
    sentence = (kind.__doc__ or "").split("\n")[0].rstrip(".")
    return errors.error_body(sentence, kind.code, EXAMPLE_ID)
