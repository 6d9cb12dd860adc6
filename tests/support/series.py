"""Read what this process has counted."""

from __future__ import annotations

from prometheus_client.metrics import MetricWrapperBase

from sm.metrics.files import Number


def value(series: MetricWrapperBase | Number) -> float:
    """Return the number of a counter or a gauge, or a histogram's first one."""
    if isinstance(series, Number):
        return series.get()
    (family,) = series.collect()
    return float(family.samples[0].value)
