"""The findings on a client: lines and a bar chart for the terminal, one object for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from trireme_tools.charts import bar


class CheckSkipped(Exception):
    """A check cannot be made on this machine; the sentence gives the reason. Not a fault of the client."""


@dataclass(frozen=True)
class Finding:
    """The result of one check. ``passed`` is None if it was not made, and ``sentence`` gives the reason."""

    check: str
    passed: bool | None
    sentence: str
    seconds: float = 0.0

    def __str__(self) -> str:
        mark = {True: "ok  ", False: "FAIL", None: "-   "}[self.passed]
        return f"{mark}  {self.check:<24} {self.sentence}"


@dataclass
class ClientReport:
    """All findings on a client; ``stages`` in milliseconds of one request."""

    client: str
    findings: list[Finding] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return all(finding.passed is not False for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON, for CI."""
        return {
            "client": self.client,
            "passed": self.passed,
            "checks": [
                {**asdict(finding), "seconds": round(finding.seconds, 3)} for finding in self.findings
            ],
            "stages_ms": {name: round(value, 3) for name, value in self.stages.items()},
        }

    def verdict(self) -> str:
        failed = sum(finding.passed is False for finding in self.findings)
        if failed:
            return f"{self.client} fails {failed} of {len(self.findings)}"
        skipped = ", ".join(finding.check for finding in self.findings if finding.passed is None)
        return f"{self.client} passes" + (f" (not checked: {skipped})" if skipped else "")


def chart(stages: Mapping[str, float]) -> Iterator[str]:
    """Yield a table of the stages with bars, the longest :data:`trireme_tools.charts.MAX_COLUMNS` columns."""
    if not stages:
        return
    total, longest = sum(stages.values()) or 1.0, max(stages.values()) or 1.0
    yield f"{'stage':<12} {'ms':>9} {'share':>6}"
    for name, value in stages.items():
        yield f"{name:<12} {value:>9.3f} {value / total:>6.0%}  {bar(value, longest)}"
    yield f"{'all':<12} {total:>9.3f}"
