"""Read the standard ``OTEL_*`` variables, without OpenTelemetry: whether traces are on, where they go."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from urllib.parse import urlsplit

#: The variables that say where the collector is; the first that is set wins. One of them turns traces on.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
#: The path of traces below ``OTEL_EXPORTER_OTLP_ENDPOINT``.
TRACES_PATH = "v1/traces"
#: A module of the optional ``otel`` packages.
EXPORTER = "opentelemetry.exporter.otlp.proto.http"


def are_traces_wanted(environment: Mapping[str, str]) -> bool:
    """True if the variables name a collector and nothing turns traces off."""
    disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    without = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none"
    return not disabled and not without and _first(environment, ENDPOINTS)[1] != ""


def are_traces_on(environment: Mapping[str, str]) -> bool:
    """True if traces are wanted and possible."""
    return are_traces_wanted(environment) and not explain_off(environment)


def explain_off(environment: Mapping[str, str]) -> str:
    """Return why traces that are wanted are not possible; empty if they are, or if none are wanted."""
    if not are_traces_wanted(environment):
        return ""
    name, endpoint = _first(environment, ENDPOINTS)
    if not endpoint.startswith(("http://", "https://")):
        return f"traces are off: {name} must be a URL that begins with http:// or https://."
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter not in ("", "otlp"):
        return f"traces are off: OTEL_TRACES_EXPORTER={exporter[:40]!r} is not supported; otlp and none are."
    name, protocol = _first(environment, PROTOCOLS)
    if protocol not in ("", PROTOCOL):
        return (
            f"traces are off: {name}={protocol[:40]!r} is not supported. Set it to {PROTOCOL}, and the "
            "endpoint to the collector's port for it, which is usually 4318."
        )
    if not _is_installed(EXPORTER):
        return (
            f"traces are off: {_first(environment, ENDPOINTS)[0]} is set, but the OpenTelemetry packages are "
            "not installed. Install them: pip install 'trireme-serving[otel]'"
        )
    return ""


def describe(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the level and the text of the start's line about traces; None if none are wanted."""
    if not are_traces_wanted(environment):
        return None
    problem = explain_off(environment)
    return ("warning", problem) if problem else ("info", f"traces go to {shown_url(environment)}")


def shown_url(environment: Mapping[str, str]) -> str:
    """Return the URL for the log, without a user's name, password or query."""
    url = urlsplit(traces_url(environment))
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"


def traces_url(environment: Mapping[str, str]) -> str:
    """Return the URL that traces are sent to."""
    name, endpoint = _first(environment, ENDPOINTS)
    return endpoint if name == ENDPOINTS[0] else f"{endpoint.rstrip('/')}/{TRACES_PATH}"


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str]:
    """Return the first of these variables that is set, with its value."""
    return next(
        ((name, value) for name in names if (value := environment.get(name, "").strip())), (names[0], "")
    )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
