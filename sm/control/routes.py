"""``/ping``, ``/models`` and ``/metrics``, which must answer while the data plane is full."""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from flask import Blueprint, Response, request
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sm import __version__, hardware
from sm.control.paths import MAX_BODIES, MAX_BODY_BYTES
from sm.control.series import read_families
from sm.control.state import check_ready, is_ready, list_served, triton_metrics
from sm.errors import BadInput, Forbidden, TooLarge, UnknownModel, WrongPayload
from sm.http.messages import Answer, parse_json
from sm.http.responses import request_id, respond
from sm.models.load_records import Canary, Record
from sm.models.model_loader import Loader
from sm.models.on_demand import LOADING, OnDemand
from sm.models.versions import ROLLED_BACK, SERVES, Versions
from sm.polling import at_most_every
from sm.run_state import SHARED_MEMORY, Box, read_engines, read_json
from sm.settings import Settings

#: More requests for ``/metrics`` get the same text: while series are collected, ``/ping`` is slower.
MAX_TEXT_AGE_S = 0.2
#: SageMaker's default for the payload of one request, and its limit for all concurrent requests, in MiB.
DEFAULT_PAYLOAD_MB, MAX_TOTAL_MB = 6, 100


def blueprint(box: Box) -> Blueprint:
    """Create the routes of the control plane."""
    routes = Blueprint("control", __name__)
    limit_bodies(routes)
    scrape = at_most_every(MAX_TEXT_AGE_S, lambda: router_metrics(box) + triton_metrics(box))

    @routes.route("/ping", methods=["GET", "POST"])
    def ping() -> Response:
        check_ready(box)
        return respond(Answer(b""))

    @routes.get("/metrics")
    def metrics() -> Response:
        return respond(Answer(scrape(), CONTENT_TYPE_LATEST))

    return routes


def router_metrics(box: Box) -> bytes:
    """Return the sums of all workers' series, and the series of the whole box."""
    registry = CollectorRegistry()
    registry.register(BoxSeries(box, lambda: is_ready(box)))
    return generate_latest(registry)


def limit_bodies(routes: Blueprint) -> None:
    """Refuse bodies with a Content-Length of more than the path's limit on these routes."""

    @routes.before_request
    def check_size() -> None:
        limit = MAX_BODIES[request.url_rule.rule] if request.url_rule else MAX_BODY_BYTES
        if (request.content_length or 0) > limit:
            raise TooLarge(f"the body is larger than the {limit} bytes this box accepts here")


def execution_parameters(settings: Settings) -> Blueprint:
    """Create the route of batch transform's parameters."""
    routes = Blueprint("batch", __name__)
    limit_bodies(routes)

    @routes.get("/execution-parameters")
    def read() -> Response:
        return respond(Answer(orjson.dumps(batch_parameters(settings))))

    return routes


def batch_parameters(settings: Settings) -> dict[str, object]:
    """Return the parameters; by default as many requests as there are threads, within SageMaker's limit."""
    payload_mb = DEFAULT_PAYLOAD_MB if settings.max_payload_mb is None else settings.max_payload_mb
    # 0 means payloads of any size, sent in chunks.
    max_payload_mb = (
        max(1, min(int(payload_mb), settings.max_body // 2**20, MAX_TOTAL_MB)) if payload_mb else 0
    )
    at_once = min(settings.worker_count * settings.threads, MAX_TOTAL_MB // max(1, max_payload_mb))
    # Leave it out if it is not set, as no spelling of the default suits everybody: the local mode of the
    # SageMaker SDK accepts only MultiRecord, and containers use MULTI_RECORD.
    strategy = {"BatchStrategy": settings.batch_strategy} if settings.batch_strategy else {}
    return {
        "MaxConcurrentTransforms": settings.max_transforms or max(1, at_once),
        **strategy,
        "MaxPayloadInMB": max_payload_mb,
    }


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


RESTARTS = "trireme_restarts"


class BoxSeries(Collector):
    """Collects the series of one scrape.

    Args:
        box: The box.
        is_ready: Returns True if ``/ping`` would answer 200.
        shared_memory: The folder of shared memory.
    """

    def __init__(self, box: Box, is_ready: Callable[[], bool], shared_memory: Path = SHARED_MEMORY) -> None:
        self._box, self._is_ready, self._shared_memory = box, is_ready, shared_memory

    def collect(self) -> Iterator[Metric]:
        processes = read_json(self._box.state_file, {}).get("processes", {})
        yield build_info()
        yield GaugeMetricFamily(
            "trireme_ready", "1 if the box can serve, as /ping says it.", float(self._is_ready())
        )
        yield from self._folder_space()
        fetched, seconds = self._box.fetched_bytes, self._box.fetch_seconds
        what = "Bytes of models that came over the network before the start."
        yield GaugeMetricFamily("trireme_fetch_bytes", what, fetched)
        yield GaugeMetricFamily("trireme_fetch_seconds", "Seconds that this took.", seconds)
        yield _resident(processes)
        yield _engines(read_engines(self._box))
        yield from self._worker_series(processes)

    def _worker_series(self, processes: Mapping[str, Any]) -> Iterator[Metric]:
        """Yield the workers' series. The supervisor's restarts join theirs, because a family occurs once."""
        for family in read_families(self._box.metrics_folder):
            if family.name == RESTARTS:
                for name, process in processes.items():
                    family.add_sample(f"{RESTARTS}_total", {"process": name}, float(process["restarts"]))
            yield family

    def _folder_space(self) -> Iterator[Metric]:
        """Yield the size and the free space of the folder of shared memory."""
        with contextlib.suppress(OSError):
            space = os.statvfs(self._shared_memory)
            size, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
            yield GaugeMetricFamily("trireme_dev_shm_size_bytes", "Size of /dev/shm.", size)
            yield GaugeMetricFamily("trireme_dev_shm_free_bytes", "Free space in /dev/shm.", free)


def build_info() -> Metric:
    """Return the series that states the version."""
    family = GaugeMetricFamily("trireme_build_info", "The version of the box.", labels=["version"])
    family.add_metric([__version__], 1.0)
    return family


def _engines(choices: Mapping[str, dict[str, Any]]) -> Metric:
    labels = ("model", "version", "engine", "precision")
    family = GaugeMetricFamily(
        "trireme_model_engine_info", "What runs a model of the CPU target.", labels=labels
    )
    for choice in filter(None, choices.values()):
        family.add_metric([choice[label] for label in labels], 1.0)
    return family


def _resident(processes: Mapping[str, Any]) -> Metric:
    family = GaugeMetricFamily(
        "trireme_process_resident_bytes",
        "Memory in RAM of a process and its descendants; pages that they share count for each.",
        labels=["process"],
    )
    for name, process in processes.items():
        if process["pid"]:
            pids = hardware.with_descendants(process["pid"])
            family.add_metric([name], sum(map(hardware.resident_bytes, pids)))
    return family
