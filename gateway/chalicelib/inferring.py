"""Run an inference on a payload from the request or the bucket; return the answer and store the result."""

from __future__ import annotations

import math
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from sm.client.base import Client
from sm.errors import BadInput, WrongPayload
from sm.http import messages
from sm.invocation import Invocation
from sm.router.answers import write
from sm.router.dispatch import run_record
from sm.router.request_types import DispatchRequest, RawRecord

from .cache import Cache
from .storage import Storage, Stored, check_key

MEMBERS = {"s3_key", "payload", "parameters", "version"}
#: Types that Python's own table does not have on every machine.
TYPES = {".npy": "application/x-npy", ".webp": "image/webp", ".txt": "text/plain", ".json": messages.JSON}
#: Labels in an answer, as in the reference.
TOP = 5


@dataclass(frozen=True)
class InferenceInputs:
    """The checked body of a request. ``key`` is None if the payload is in the body."""

    key: str | None
    payload: Any
    parameters: Mapping[str, Any]
    version: str


def read(body: bytes, version: str, prefixes: tuple[str, ...]) -> InferenceInputs:
    """Read ``{"s3_key"}`` or ``{"payload"}``, with optional ``parameters`` and ``version``."""
    members = messages.parse_json(body)
    if not isinstance(members, dict):
        raise BadInput("the body must be a JSON object with s3_key or payload")
    for name in members:
        if name not in MEMBERS:
            raise WrongPayload(f"{name}: no such member; there are {', '.join(sorted(MEMBERS))}", field=name)
    if ("s3_key" in members) == ("payload" in members):
        raise BadInput("the body must have s3_key or payload, one of the two", field="s3_key")
    parameters, chosen = members.get("parameters") or {}, members.get("version") or version
    if not isinstance(parameters, dict):
        raise WrongPayload("parameters: must be an object", field="parameters")
    if isinstance(chosen, bool):
        raise WrongPayload("version: must be a number", field="version")
    check_version(str(chosen))
    if isinstance(members.get("payload"), list):
        raise WrongPayload("payload: must be one record; a list of them is for /invocations", field="payload")
    key = check_key(members["s3_key"], prefixes) if "s3_key" in members else None
    return InferenceInputs(key, members.get("payload"), parameters, str(chosen))


def read_any(body: bytes, content_type: str, version: str) -> InferenceInputs:
    """Read any body, for a gateway without a bucket: ``{"payload"}``, the payload itself, or a raw body."""
    kind = content_type.split(";")[0].strip().lower() or messages.JSON
    if kind != messages.JSON:
        return InferenceInputs(None, RawRecord(body, kind), {}, check_version(version))
    payload = messages.parse_json(body)
    if isinstance(payload, dict) and ("payload" in payload or "s3_key" in payload):
        return read(body, version, ())
    return InferenceInputs(None, payload, {}, check_version(version))


def check_version(version: str) -> str:
    if version and not (version.isascii() and version.isdigit()):
        raise WrongPayload("version: must be a number", field="version")
    return version


class Inference:
    """Runs requests by the box's own dispatcher."""

    def __init__(self, storage: Storage, results: str, cache: Cache) -> None:
        self._storage, self._results, self._cache = storage, results, cache

    def run(self, client: Client, inputs: InferenceInputs, request_id: str) -> dict[str, Any]:
        """Return ``status``, ``model``, ``predictions``, and the key of the stored result if there is one."""
        record = self._record(inputs, client)
        parameters = dict(inputs.parameters)
        if "top" in client.payload.parameter_names():
            parameters.setdefault("top", TOP)
        call = DispatchRequest(
            client.name,
            [record],
            version=inputs.version,
            parameters=parameters,
            request_id=request_id,
            client=client,
        )
        answer = {"status": "success", "model": client.name, "predictions": self._predictions(call)}
        key = self._store(inputs.key, answer)
        return {**answer, "result_s3_key": key}

    def _record(self, inputs: InferenceInputs, client: Client) -> Any:
        if inputs.key is None:
            return inputs.payload
        stored = self._storage.get(inputs.key)
        kind = content_type(inputs.key, stored, client.payload.content_types)
        return messages.parse_json(stored.body) if kind == messages.JSON else RawRecord(stored.body, kind)

    def _predictions(self, call: DispatchRequest) -> Any:
        if not self._cache.is_on:
            return self._compute(call)
        name = _cache_key(call)
        cached = self._cache.get(name)
        if cached is None:
            computed = self._compute(call)
            self._cache.put(name, orjson.dumps(computed))
            return computed
        return orjson.loads(cached)

    def _compute(self, call: DispatchRequest) -> Any:
        answer = write(call, run_record(call, Invocation(math.inf)))
        if answer.content_type != messages.JSON:
            return answer.read().decode("utf-8", "replace")
        written = orjson.loads(answer.read())
        # The answer of a client that writes its own bytes has no envelope.
        return written["result"] if isinstance(written, dict) and "result" in written else written

    def _store(self, key: str | None, answer: dict[str, Any]) -> str | None:
        if key is None:
            return None
        place = f"{self._results}{key}_{answer['model']}_inference.json"
        self._storage.put(place, orjson.dumps({**answer, "s3_key": key}))
        return place


def content_type(key: str, stored: Stored, accepted: tuple[str, ...]) -> str:
    """Return the object's type in S3 if the client accepts it, else the type of the key's ending."""
    declared = stored.content_type.split(";")[0].strip().lower()
    if declared in (*accepted, messages.JSON):
        return declared
    ending = key[key.rfind(".") :].lower() if "." in key else ""
    return TYPES.get(ending) or mimetypes.guess_type(key)[0] or declared


def _cache_key(call: DispatchRequest) -> str:
    record = call.records[0]
    parts = (
        (record.content_type.encode(), record.body)
        if isinstance(record, RawRecord)
        else (b"", orjson.dumps(record))
    )
    parameters = orjson.dumps(dict(call.parameters), option=orjson.OPT_SORT_KEYS)
    return Cache.name(call.model.encode(), call.version.encode(), parameters, *parts)
