"""Validate lines in CloudWatch's embedded metric format against AWS's specification.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, model_validator

#: The limit of an event in CloudWatch Logs was 256 KB before it became 1 MB.
MAX_BYTES = 256 * 1024
MAX_VALUES = 100

Name = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
DimensionName = Annotated[str, StringConstraints(min_length=1, max_length=250)]


class Strict(BaseModel):
    """A model without further members."""

    model_config = ConfigDict(extra="forbid", strict=True)


class MetricDefinition(Strict):
    Name: Name
    Unit: Literal["Count", "Milliseconds", "None"] | None = None
    StorageResolution: Literal[1, 60] | None = None


class MetricDirective(Strict):
    Namespace: Name
    Dimensions: list[Annotated[list[DimensionName], Field(max_length=30)]] = Field(min_length=1)
    Metrics: list[MetricDefinition] = Field(max_length=100)


class Metadata(Strict):
    Timestamp: int = Field(ge=1_400_000_000_000)
    CloudWatchMetrics: list[MetricDirective]


class Histogram(Strict):
    """Values with counts, and their statistics, as AWS's own exporters write a distribution."""

    Values: list[float] = Field(min_length=1, max_length=MAX_VALUES)
    Counts: list[float]
    Min: float
    Max: float
    Sum: float
    Count: float

    @model_validator(mode="after")
    def is_consistent(self) -> Histogram:
        assert len(self.Values) == len(self.Counts)
        assert self.Min <= self.Max
        assert sum(self.Counts) == self.Count
        return self


Value = Histogram | float | Annotated[list[float], Field(max_length=MAX_VALUES)]


def read(line: str) -> dict[str, Any]:
    """Return the document in a line. Raises an error if CloudWatch would not extract its metrics."""
    assert len(line.encode()) <= MAX_BYTES
    document: dict[str, Any] = json.loads(line)
    for directive in Metadata.model_validate(document["_aws"]).CloudWatchMetrics:
        for name in {name for names in directive.Dimensions for name in names}:
            assert 1 <= len(TypeAdapter(str).validate_python(document[name], strict=True)) <= 1024
        for metric in directive.Metrics:
            TypeAdapter(Value).validate_python(document[metric.Name], strict=True)
    return document
