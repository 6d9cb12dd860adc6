"""The OpenAPI document: ``openapi.json`` has the core's; extensions' and clients' parts are added here.

An operation there names the statuses of its errors as ``x-errors``; a route that invokes without a body or
answer of its own has those of ``/invocations``. One that needs no API key has an empty ``security``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from sm import __version__, entry_points, errors

FILE = Path(__file__).with_suffix(".json")
#: A larger sample is not served.
MAX_SAMPLE_BYTES = 8 * 2**20
#: The request id of the examples.
EXAMPLE_ID = "0b5e…"
METHODS = {"get", "post", "patch", "delete"}
INVOCATIONS = "/invocations"
#: The other routes that take the same bodies; the last streams its answer.
INVOKING = (
    "/models/{name}/invoke",
    "/endpoints/{name}/invocations",
    "/endpoints/{name}/invocations-response-stream",
)
#: Not in the document: no caller receives the first, a client's script chooses the status of the second, and
#: callers receive the third as a BadInput.
UNDOCUMENTED = (errors.CallerGone, errors.ChosenStatus, errors.WrongTensor)
#: The errors for an API key that is missing, wrong or used too often.
KEY_ERRORS = (401, 403, 429)

Json = dict[str, Any]
Described = Mapping[str, Any]


def document(clients: Sequence[Described] = (), forms: Iterable[Described] = ()) -> Json:
    """Return the OpenAPI 3.1 document.

    Args:
        clients: Descriptions by :func:`~sm.router.client_schemas.describe_client`.
        forms: Parts of such a document by :meth:`~sm.router.forms.form.Form.schema`.
    """
    described: Json = orjson.loads(FILE.read_bytes())
    described["info"]["version"] = __version__
    components = described["components"]
    schemas = components["schemas"]
    observers = entry_points.observers()
    for part in (*forms, *(observer.schema() or {} for observer in observers)):
        described["paths"] |= part.get("paths", {})
        schemas |= part.get("components", {}).get("schemas", {})
    for client in clients:
        schemas |= client["schemas"]
    _set_titles(schemas, {client["name"] for client in clients})
    _add_invocations(described["paths"], clients)
    for item in described["paths"].values():
        for method in METHODS & item.keys():
            operation = item[method]
            statuses = {*operation.pop("x-errors", ())}
            if "security" not in operation:
                statuses |= {*KEY_ERRORS}
            failures = {str(each): {"$ref": f"#/components/responses/Error{each}"} for each in statuses}
            operation["responses"] = failures | operation.get("responses", {})
    # An empty object makes the others optional: a box may require API keys.
    described["security"] = [{}, *({scheme: []} for scheme in components["securitySchemes"])]
    components["responses"] = responses(clients)
    return described


def _add_invocations(paths: Json, clients: Sequence[Described]) -> None:
    """Add the clients' bodies and answers to ``/invocations``, and give them to the other routes."""
    invoke = paths[INVOCATIONS]["post"]
    body, answer = invoke["requestBody"]["content"], invoke["responses"]["200"]["content"]
    for content, end in ((body, "Request"), (answer, "Answer")):
        of_clients = [ref(f"{client['name']}.{end}") for client in clients]
        content["application/json"]["schema"]["anyOf"][:0] = of_clients
    raw: Json = {
        # Generators need a type, although OpenAPI 3.1 does not.
        kind: {"schema": {"type": "string", **({} if kind.startswith("text/") else {"format": "binary"})}}
        for client in clients
        for kind in client["content_types"]
        if kind != "application/json"
    }
    body |= raw
    answer |= {kind: {} for kind in raw if kind == "*/*"}
    for path in INVOKING:
        own = paths[path]["post"]
        answers = invoke["responses"] | own.get("responses", {})
        paths[path]["post"] = {**invoke, **own, "responses": answers}


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


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
        "Error424": _answer(
            "The form in which SageMaker's runtime passes on every error of the box.", "ModelError"
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
    response = _answer(description, "Error")
    _examples(response).update({kind.code: {"value": _example(kind)} for kind in matching})
    if any(kind.retry_after for kind in matching):
        response["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return response


def _answer(description: str, schema: str) -> Json:
    return {"description": description, "content": {"application/json": {"schema": ref(schema)}}}


def _examples(response: Json) -> Json:
    examples: Json = response["content"]["application/json"].setdefault("examples", {})
    return examples


def _example(kind: type[errors.TriremeError]) -> Json:
    sentence = (kind.__doc__ or "").split("\n")[0].rstrip(".")
    return errors.error_body(sentence, kind.code, EXAMPLE_ID)
