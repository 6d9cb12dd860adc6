"""What was found of a client: lines and a bar chart for the terminal, one object for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sm.tools.bars import bar


@dataclass(frozen=True)
class Finding:
    """One check: ``passed`` is None where it was not asked, and ``sentence`` says why then."""

    check: str
    passed: bool | None
    sentence: str
    seconds: float = 0.0

    def __str__(self) -> str:
        mark = {True: "ok  ", False: "FAIL", None: "-   "}[self.passed]
        return f"{mark}  {self.check:<24} {self.sentence}"


@dataclass
class Report:
    """All of a client's; ``stages`` in milliseconds of one request."""

    client: str
    findings: list[Finding] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return all(finding.passed is not False for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """For CI."""
        return {
            "client": self.client,
            "passed": self.passed,
            "checks": [
                {
                    "check": finding.check,
                    "passed": finding.passed,
                    "sentence": finding.sentence,
                    "seconds": round(finding.seconds, 3),
                }
                for finding in self.findings
            ],
            "stages_ms": {name: round(value, 3) for name, value in self.stages.items()},
        }

    def verdict(self) -> str:
        failed = sum(finding.passed is False for finding in self.findings)
        return f"{self.client} fails {failed} of {len(self.findings)}" if failed else f"{self.client} passes"


def chart(stages: Mapping[str, float]) -> Iterator[str]:
    """A table of the stages with a bar for each, the longest of :data:`sm.tools.bars.WIDTH`."""
    if not stages:
        return
    whole, most = sum(stages.values()) or 1.0, max(stages.values()) or 1.0
    yield f"{'stage':<12} {'ms':>9} {'share':>6}"
    for name, value in stages.items():
        yield f"{name:<12} {value:>9.3f} {value / whole:>6.0%}  {bar(value, most)}"
    yield f"{'all':<12} {whole:>9.3f}"
