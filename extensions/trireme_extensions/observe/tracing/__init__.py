"""Traces of requests, for an OpenTelemetry collector. Without the ``OTEL_*`` variables nothing imports it."""
