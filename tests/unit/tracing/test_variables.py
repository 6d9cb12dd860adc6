"""Which variables turn traces on, and what the start logs about them."""

from __future__ import annotations

import pytest

from sm.tracing import variables
from sm.tracing.variables import (
    are_traces_on,
    describe,
    explain_off,
    service_name,
    traces_url,
)

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_SERVICE_NAME": "cats", "OTEL_TRACES_SAMPLER": "always_on"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        {**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"},
        {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_a_collector_or_disabled_there_are_no_traces_and_no_message(
    environment: dict[str, str],
) -> None:
    assert not are_traces_on(environment)
    assert describe(environment) is None


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_a_collector_turns_traces_on(name: str) -> None:
    assert are_traces_on({name: "http://collector:4318"})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317"),
    ],
)
def test_an_unsupported_value_turns_traces_off_with_a_warning_that_names_it(
    variable: str, value: str
) -> None:
    environment = {**ENDPOINT, variable: value}
    assert not are_traces_on(environment)
    level, message = describe(environment) or ("", "")
    assert level == "warning"
    assert variable in message


def test_without_the_packages_the_message_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variables, "EXPORTER", "opentelemetry_that_is_not_there.exporter")
    assert "pip install 'trireme-serving[otel]'" in explain_off(ENDPOINT)
    assert not are_traces_on(ENDPOINT)


def test_the_message_names_the_collector_without_password_or_query() -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://me:secret@collector:4318/otlp/?key=secret"}
    assert describe(environment) == ("info", "traces go to https://collector:4318/otlp/")


def test_the_traces_path_is_added_only_to_the_general_endpoint() -> None:
    assert traces_url({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1/x/"}) == "http://a:1/x/v1/traces"
    assert traces_url({**ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b:2/t"}) == "http://b:2/t"


def test_the_service_name_comes_from_the_variables_in_the_specified_order() -> None:
    resource = {"OTEL_RESOURCE_ATTRIBUTES": "a=b, service.name=dogs"}
    assert service_name({}) == "trireme"
    assert service_name(resource) == "dogs"
    assert service_name({**resource, "OTEL_SERVICE_NAME": "cats"}) == "cats"
