"""``/models``: list what is served; in multi-model mode also load, unload and invoke."""

from __future__ import annotations

import hmac
import logging
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import orjson
from flask import Blueprint, Response, request

from sm.control.routes import limit_bodies
from sm.control.state import list_served
from sm.errors import BadInput, Forbidden, UnknownModel, WrongPayload
from sm.http.messages import Answer, parse_json
from sm.http.responses import request_id, respond
from sm.multimodel.load_records import Record
from sm.multimodel.model_loader import Loader
from sm.run_state import Box

log = logging.getLogger(__name__)
#: Models on a page of the list.
DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 100, 1000
MAX_NAME_CHARACTERS = 256
#: SageMaker's own limit for Target-Model.
MAX_TARGET_CHARACTERS = 1024


def restricted_blueprint(keys: Mapping[str, str]) -> Blueprint:
    """Create a blueprint whose routes require the headers ``keys``, and accept small bodies only.

    ``/models`` does what Triton's model-repository API does, so a restriction of that API holds here too.
    """
    routes = Blueprint("models", __name__)
    limit_bodies(routes)

    @routes.before_request
    def check_keys() -> None:
        for name, value in keys.items():
            if not hmac.compare_digest(request.headers.get(name, "").encode(), value.encode()):
                raise Forbidden(f"This API is restricted, expecting header {name!r}")

    return routes


def listing(box: Box) -> Blueprint:
    """Create the routes of a box that serves one repository."""
    routes = restricted_blueprint(box.repository_keys)

    @routes.get("/models")
    def models() -> Response:
        return respond(Answer(orjson.dumps({"models": list_served(box)})))

    @routes.get("/models/<name>")
    def model(name: str) -> Response:
        row = next((row for row in list_served(box) if row["modelName"] == name), None)
        if row is None:
            raise UnknownModel(f"no model {name[:200]!r}")
        return respond(Answer(orjson.dumps(row)))

    return routes


def loading(loader: Loader, keys: Mapping[str, str]) -> Blueprint:
    """Create the routes of multi-model mode: load, list and unload."""
    routes = restricted_blueprint(keys)

    @routes.get("/models")
    def models() -> Response:
        return respond(Answer(orjson.dumps(page(loader, request.args.to_dict()))))

    @routes.post("/models")
    def load() -> Response:
        name, url = _read_load_request(parse_json(request.get_data()))
        target = request.headers.get("X-Amzn-SageMaker-Target-Model", "")
        if len(target) > MAX_TARGET_CHARACTERS or not target.isprintable():
            raise BadInput(f"the Target-Model must be at most {MAX_TARGET_CHARACTERS} printable characters")
        log_request("load", name)
        return respond(Answer(orjson.dumps(describe_record(loader.load(name, url, target)))))

    @routes.get("/models/<name>")
    def model(name: str) -> Response:
        snapshot = loader.records.read()
        record = snapshot.records.get(name)
        if record is None or not record.loaded:
            raise snapshot.unknown(name)
        return respond(Answer(orjson.dumps(describe_record(record))))

    @routes.delete("/models/<name>")
    def unload(name: str) -> Response:
        log_request("unload", name)
        loader.unload(name)
        return respond(Answer(b"{}"))

    return routes


def log_request(action: str, model: str) -> None:
    """Log who asks for a change of the models, whether it succeeds or not."""
    extra = {"model": model[:MAX_NAME_CHARACTERS], "request_id": request_id(request.environ)}
    if key := request.headers.get("X-Trireme-Key-Name", ""):
        extra["api_key_name"] = key
    log.info("%s requested", action, extra=extra)


def describe_record(record: Record) -> dict[str, str]:
    return {"modelName": record.name, "modelUrl": record.url}


def page(loader: Loader, query: dict[str, str]) -> dict[str, Any]:
    """Return a page of the list, sorted by name. The token is the last name of the page before."""
    size = query.get("limit", str(DEFAULT_PAGE_SIZE))
    if not size.isdecimal() or not 1 <= int(size) <= MAX_PAGE_SIZE:
        raise BadInput(f"limit must be a number from 1 to {MAX_PAGE_SIZE}, not {size[:20]!r}")
    records = sorted(loader.records.read().loaded(), key=lambda record: record.name)
    start = bisect_right([record.name for record in records], query.get("next_page_token", ""))
    rows = records[start : start + int(size)]
    answer: dict[str, Any] = {"models": [describe_record(record) for record in rows]}
    if start + len(rows) < len(records):
        answer["nextPageToken"] = rows[-1].name
    return answer


def _read_load_request(body: Any) -> tuple[str, str]:
    for member in ("model_name", "url"):
        if not isinstance(body, dict) or not isinstance(body.get(member), str) or not body[member]:
            raise WrongPayload(f"{member}: must be a non-empty string", field=member)
    name, url = body["model_name"], body["url"]
    if len(name) > MAX_NAME_CHARACTERS or "/" in name or not name.isprintable() or name in (".", ".."):
        raise BadInput(
            f"model_name must be at most {MAX_NAME_CHARACTERS} printable characters without a slash, "
            "and neither . nor .."
        )
    return name, url
