"""Read what this process has counted."""

from __future__ import annotations

from prometheus_client.metrics import MetricWrapperBase


def value(series: MetricWrapperBase) -> float:
    """Return the number of a counter or a gauge, or a histogram's first one."""
    (family,) = series.collect()
    return float(family.samples[0].value)
