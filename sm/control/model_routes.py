"""``/models``: list, load, unload and replace models, for each kind of box."""

from __future__ import annotations

import hmac
import logging
import re
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
from sm.models.canary import Canary
from sm.models.load_records import LoadRecord
from sm.models.model_loader import ModelLoader
from sm.models.on_demand import LOADING, OnDemand
from sm.models.versions import ROLLED_BACK, SERVES, Versions
from sm.run_state import Box

log = logging.getLogger(__name__)
#: Models on a page of the list.
DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 100, 1000
PAGE_SIZE = re.compile(r"[0-9]{1,4}")
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


def listing(box: Box, versions: Versions | None = None) -> Blueprint:
    """Create the routes of a box that serves one repository, of which new versions may come."""
    routes = restricted_blueprint(box.repository_keys)

    def rows() -> list[dict[str, Any]]:
        served = list_served(box)
        if versions is None:
            return served
        failed = dict(versions.failures)
        for row in served:
            # A client may have another name than its models.
            for name in (*row.get("models", ()), row["modelName"]):
                row |= versions.describe(name)
                failed.pop(name, None)
        new: dict[str, Any] = {"modelUrl": "", "client": None, "ready": False, "versions": []}
        return [*served, *({**new, "modelName": name, "reason": failed[name]} for name in failed)]

    def replaced() -> Versions:
        if versions is None:
            raise Forbidden("models stay as they are; TRIREME_MODEL_POLL=0 lets sm push replace them")
        return versions

    @routes.get("/models")
    def models() -> Response:
        return respond(Answer(orjson.dumps({"models": rows()})))

    @routes.get("/models/<name>")
    def model(name: str) -> Response:
        found = rows()
        row = next((row for row in found if row["modelName"] == name), None)
        if row is None and versions:  # sm push names the model, whose client may have another name
            row = next((row for row in found if name in row.get("models", ())), None)
        if row is None:
            raise UnknownModel(f"no model {name[:200]!r}")
        return respond(Answer(orjson.dumps(row)))

    @routes.post("/models/<name>/versions")
    def replace(name: str) -> Response:
        canary = _read_canary(request.get_data())
        log_request("new version", name)
        return respond(Answer(orjson.dumps({"modelName": name, "state": replaced().update(name, canary)})))

    @routes.patch("/models/<name>/versions")
    def decide(name: str) -> Response:
        body = parse_json(request.get_data())
        action = body.get("action") if isinstance(body, dict) else None
        if action not in ("promote", "rollback"):
            raise WrongPayload("action: must be promote or rollback", field="action")
        log_request(action, name)
        if action == "promote":
            replaced().promote(name)
        else:
            replaced().roll_back(name, "somebody asked for it")
        state = SERVES if action == "promote" else ROLLED_BACK
        return respond(Answer(orjson.dumps({"modelName": name, "state": state})))

    return routes


def _read_canary(body: bytes) -> Canary | None:
    """Read the share that a new version gets; None if it serves all requests at once."""
    members = parse_json(body) if body else {}
    if not isinstance(members, dict) or members.keys() - {"canary", "auto"}:
        raise WrongPayload("the body must be empty, or an object with canary and auto")
    percent, auto = members.get("canary"), members.get("auto", False)
    if percent is None and not auto:
        return None
    if type(percent) is not int or not 1 <= percent <= 99:
        raise WrongPayload("canary: must be a percentage from 1 to 99", field="canary")
    if type(auto) is not bool:
        raise WrongPayload("auto: must be true or false", field="auto")
    return Canary(percent, auto, 0.0)


def on_demand(models: OnDemand, keys: Mapping[str, str]) -> Blueprint:
    """Create the routes of a box that loads models when requests name them."""
    routes = restricted_blueprint(keys)

    @routes.get("/models")
    def list_models() -> Response:
        return respond(Answer(orjson.dumps({"models": models.list()})))

    @routes.post("/models")
    def load() -> Response:
        name = _read_text(parse_json(request.get_data()), "model_name")
        state = models.ask(name, {key.lower(): value for key, value in request.headers.items()})
        status = 202 if state == LOADING else 200
        return respond(Answer(orjson.dumps({"modelName": name, "state": state}), status=status))

    @routes.get("/models/<name>")
    def model(name: str) -> Response:
        return respond(Answer(orjson.dumps(models.describe(name))))

    @routes.delete("/models/<name>")
    def unload(name: str) -> Response:
        log_request("unload", name)
        models.evict(name)
        return respond(Answer(b"{}"))

    return routes


def loading(loader: ModelLoader, keys: Mapping[str, str]) -> Blueprint:
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


def describe_record(record: LoadRecord) -> dict[str, str]:
    return {"modelName": record.name, "modelUrl": record.url}


def page(loader: ModelLoader, query: dict[str, str]) -> dict[str, Any]:
    """Return a page of the list, sorted by name. The token is the last name of the page before."""
    size = query.get("limit", str(DEFAULT_PAGE_SIZE))
    if not PAGE_SIZE.fullmatch(size) or not 1 <= int(size) <= MAX_PAGE_SIZE:
        raise BadInput(f"limit must be a number from 1 to {MAX_PAGE_SIZE}, not {size[:20]!r}")
    records = sorted(loader.records.read().loaded(), key=lambda record: record.name)
    start = bisect_right([record.name for record in records], query.get("next_page_token", ""))
    rows = records[start : start + int(size)]
    answer: dict[str, Any] = {"models": [describe_record(record) for record in rows]}
    if start + len(rows) < len(records):
        answer["nextPageToken"] = rows[-1].name
    return answer


def _read_load_request(body: Any) -> tuple[str, str]:
    name, url = _read_text(body, "model_name"), _read_text(body, "url")
    if len(name) > MAX_NAME_CHARACTERS or "/" in name or not name.isprintable() or name in (".", ".."):
        raise BadInput(
            f"model_name must be at most {MAX_NAME_CHARACTERS} printable characters without a slash, "
            "and neither . nor .."
        )
    return name, url


def _read_text(body: Any, member: str) -> str:
    text = body.get(member) if isinstance(body, dict) else None
    if not isinstance(text, str) or not text:
        raise WrongPayload(f"{member}: must be a non-empty string", field=member)
    return text
