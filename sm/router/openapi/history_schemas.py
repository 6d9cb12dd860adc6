"""The schemas of ``/dashboard/data``."""

from __future__ import annotations

from sm.router.openapi.parts import Json, ref

NUMBER: Json = {"type": "number"}
INTEGER: Json = {"type": "integer", "minimum": 0}
TEXT: Json = {"type": "string"}
MILLISECONDS: Json = {"type": ["number", "null"], "description": "Milliseconds; null without a request."}


def _object(description: str, **properties: Json) -> Json:
    return {
        "type": "object",
        "description": description,
        "required": list(properties),
        "properties": properties,
    }


_OUTCOME = {
    "answers": {
        "type": "object",
        "description": "Number of answers by class of status, such as 2xx.",
        "additionalProperties": INTEGER,
    },
    "p50_ms": MILLISECONDS,
    "p95_ms": MILLISECONDS,
    "p99_ms": MILLISECONDS,
    "queue": INTEGER,
}
_PERIOD = {
    "at": {"type": "number", "description": "The end of the period, in seconds since 1970."},
    "seconds": {"type": "number", "description": "The length of the period."},
    "all": _object("All models together.", **_OUTCOME, in_flight=INTEGER),
    "models": {
        "type": "object",
        "description": "Models that had requests.",
        "additionalProperties": _object(
            "One model.",
            **_OUTCOME,
            threads=INTEGER,
            stages_ms={
                "type": "object",
                "description": "Time in each stage, summed over all requests.",
                "additionalProperties": NUMBER,
            },
        ),
    },
}

SCHEMAS: Json = {
    "Period": _object("The requests of a period.", **_PERIOD),
    "HistoryPoint": _object(
        "The requests of a period, and the memory in use at its end.",
        **_PERIOD,
        memory={"type": "object", "additionalProperties": INTEGER},
        shared_memory=INTEGER,
    ),
    "History": _object(
        "The last hour of the box.",
        interval_seconds=NUMBER,
        box=_object(
            "The latest state of the box.",
            at=NUMBER,
            version=TEXT,
            ready={"type": "boolean"},
            reason=TEXT,
            models={
                "type": "array",
                "items": _object(
                    "A model that is served.",
                    name=TEXT,
                    client={"type": ["string", "null"]},
                    versions={"type": "array", "items": TEXT},
                    state={"enum": ["ready", "not ready", "unknown"]},
                    reason=TEXT,
                ),
            },
            processes={
                "type": "array",
                "items": _object(
                    "A process of the box with its descendants.",
                    name=TEXT,
                    state=TEXT,
                    pid={"type": ["integer", "null"]},
                    processes=INTEGER,
                    stopped=INTEGER,
                    restarts=INTEGER,
                    memory=INTEGER,
                ),
            },
            shared_memory=_object("Bytes in /dev/shm.", used=INTEGER, size=INTEGER, free=INTEGER),
            last_minute=ref("Period"),
        ),
        events={"type": "array", "items": _object("A change.", at=NUMBER, text=TEXT)},
        points={"type": "array", "items": ref("HistoryPoint")},
    ),
}
