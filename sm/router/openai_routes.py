"""What programs that search by meaning call: embeddings, rankings, and the list of models that embed.

``sm/router/forms`` has the form of each system. A request becomes a list of records for the client, and its
results the answer: so admission, deadlines, limits and batches are those of ``/invocations``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import orjson
from flask import Blueprint, Response, g, request

from sm.client.base import Client
from sm.client.decode_budget import DECODED
from sm.errors import BadInput, Overloaded, UnknownModel, WrongPayload
from sm.http.messages import JSON, Answer, parse_json
from sm.http.responses import error_answer
from sm.invocation import Invocation
from sm.models.table import Models
from sm.router.classify import read_address
from sm.router.forms.cohere import CohereRerank, RerankRequest, VllmRerank, VoyageRerank
from sm.router.forms.infinity import InfinityRerank
from sm.router.forms.openai import EmbeddingsRequest
from sm.router.forms.search import SearchRequest
from sm.router.forms.tei import TeiEmbeddings, TeiRerank
from sm.router.invocation_routes import Router
from sm.router.json_bodies import estimate_parsed_bytes
from sm.router.request_types import Form, Message
from sm.router.wsgi import NO_PARAMETERS, read_message, respond

#: A field in an error of the dispatcher: ``payload[3].text``, ``parameters.query``.
FIELD = re.compile(r"\bpayload(\[\d+\])?(?:\.(?:text|token_ids))?|\bparameters\.(\w+)")
#: The forms of a path. A body is of the first that it fits, and else of the last.
FORMS: Mapping[str, tuple[type[SearchRequest], ...]] = {
    "/v1/embeddings": (EmbeddingsRequest,),
    "/v1/rerank": (VoyageRerank, RerankRequest),
    "/v2/rerank": (CohereRerank,),
    "/rerank": (TeiRerank, VllmRerank),
    "/infinity/rerank": (InfinityRerank,),
    "/embed": (TeiEmbeddings,),
}


def blueprint(router: Router) -> Blueprint:
    """Create the routes."""
    routes = Blueprint("openai", __name__)
    routes.register_error_handler(Exception, write_error)

    @routes.get("/v1/models")
    def list_models() -> Response:
        rows = [
            {
                "id": client.name,
                "object": "model",
                "created": int(client.folder.stat().st_mtime),
                "owned_by": "trireme",
            }
            for client in clients_for(EmbeddingsRequest, router.pipeline.models)
        ]
        return respond(Answer(orjson.dumps({"object": "list", "data": rows})))

    def search() -> Response:
        def read(invocation: Invocation) -> Message:
            message = read_message(request.environ, router.max_body)
            with DECODED.reserve(estimate_parsed_bytes(message)):
                asked = read_form(request.path, message.body)
            named, pipeline = read_address(message).model, router.pipeline
            default = pipeline.classifier.default_model
            client = find_client(pipeline.models, asked, invocation, named, default)
            form = Form(asked.dispatched(client), asked.encode, asked.answer)
            headers = {**message.headers, "content-type": JSON, "accept": JSON}
            return message._replace(headers=headers, query=NO_PARAMETERS, model=asked.model, form=form)

        invocation = router.begin(request.environ)
        return respond(router.pipeline.answer(invocation, partial(read, invocation)))

    for path in FORMS:
        routes.add_url_rule(path, path.strip("/").replace("/", "-"), search, methods=["POST"])
    return routes


def read_form(path: str, body: bytes) -> SearchRequest:
    """Read a body of a path. Raises :class:`WrongPayload` that names the wrong member."""
    value, kinds = parse_json(body), FORMS[path]
    members = value if isinstance(value, dict) else {}
    g.form = next((kind for kind in kinds if kind.is_form_of(members)), kinds[-1])
    form: SearchRequest = g.form.of(value)
    return form


def clients_for(kind: type[SearchRequest], models: Models) -> list[Client]:
    """Return the clients for a request, of those that this worker has made: asking makes none."""
    return [client for client in models.clients() if kind.is_served_by(client)]


def find_client(
    models: Models,
    asked: SearchRequest,
    invocation: Invocation | None = None,
    named: str = "",
    default: str = "",
) -> Client:
    """Return the client of a request, and note its name in it.

    Args:
        models: That are served.
        asked: The request. If it names no model, ``named`` answers; without one, the default if it can,
            or the only client that can.
        invocation: Uses the client.
        named: The model of the request's headers or query.
        default: The box's default model.

    Raises:
        UnknownModel: The model is not a client that answers such requests.
        WrongPayload: The request names none, and there are several.
    """
    names = sorted(client.name for client in clients_for(type(asked), models))
    if "model" not in asked.model_fields_set:
        asked.model = named or (default if default in names else "")
        if not asked.model and len(names) > 1:
            raise WrongPayload(
                f"model: {', '.join(names)} can answer: name one, in the body or as ?modelname=",
                field="model",
            )
        asked.model = asked.model or "".join(names)
    served = models.use(asked.model, invocation)
    if served is not None and served.client is not None and asked.is_served_by(served.client):
        return served.client
    raise UnknownModel(
        f"no model {asked.model[:200]!r} that {asked.service}; there are: {', '.join(names) or 'none'}",
        field="model",
    )


def write_error(error: Exception) -> Response:
    """Answer with an error in the form of the request; one that cannot be read has the path's last form."""
    answer = error_answer(error, request.environ)
    body = orjson.loads(answer.read())
    kind: type[SearchRequest] | None = g.get("form") or FORMS.get(request.path, (None,))[-1]

    def rename(text: str) -> str:
        """Name a record by the member that has it."""
        return FIELD.sub(lambda found: found[2] or f"{kind.member if kind else ''}{found[1] or ''}", text)

    # OpenAI has one status for every request that is wrong.
    if answer.status == WrongPayload.status:
        answer.status = BadInput.status
    fault = "server_error" if answer.status >= 500 else "invalid_request_error"
    described = {
        "message": rename(body["error"]),
        "type": "rate_limit_error" if answer.status == Overloaded.status else fault,
        "param": rename(body["field"]) if "field" in body else None,
        "code": "model_not_found" if body["code"] == UnknownModel.code else body["code"],
    }
    answer.body = orjson.dumps((kind or SearchRequest).write_error(described))
    return respond(answer)
