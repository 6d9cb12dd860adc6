"""Which variables turn traces on, and what the start logs about them."""

from __future__ import annotations

import pytest

from trireme_extensions.observe.tracing import variables
from trireme_extensions.observe.tracing.variables import are_traces_on, describe, explain_off, traces_url

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("environment", "on", "level"),
    [
        ({}, False, ""),
        ({"OTEL_SERVICE_NAME": "cats", "OTEL_TRACES_SAMPLER": "always_on"}, False, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False, ""),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}, False, ""),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False, ""),
        (ENDPOINT, True, "info"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318"}, True, "info"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, False, "warning"),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "zipkin"}, False, "warning"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"}, False, "warning"),
    ],
)
def test_a_collector_turns_traces_on_and_an_unsupported_value_is_named(
    environment: dict[str, str], on: bool, level: str
) -> None:
    assert are_traces_on(environment) is on
    found, message = describe(environment) or ("", "")
    assert found == level
    if level == "warning":
        assert [*environment][-1] in message


def test_without_the_packages_the_message_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variables, "EXPORTER", "opentelemetry_that_is_not_there.exporter")
    assert "[otel]" in explain_off(ENDPOINT)
    assert not are_traces_on(ENDPOINT)


def test_the_message_names_the_collector_without_password_or_query() -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://me:secret@collector:4318/otlp/?key=secret"}
    _, message = describe(environment) or ("", "")
    assert "https://collector:4318/otlp/" in message
    assert "secret" not in message


def test_the_traces_path_is_added_only_to_the_general_endpoint() -> None:
    assert traces_url({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1/x/"}) == "http://a:1/x/v1/traces"
    assert traces_url({**ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b:2/t"}) == "http://b:2/t"
