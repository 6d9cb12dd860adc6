"""The table of the run, a row for each test: as text for people, as JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from .container import CANNOT_TELL, LACKS

#: Name of the report's property that holds its row.
PROPERTY = "contract"
HAS, HAS_NOT, BROKEN, OPEN = "has", "has not", "broken", "not asked"
#: The states of a row, the gravest last: of several cases of one test the gravest counts.
ORDER = (HAS, OPEN, HAS_NOT, BROKEN)


@dataclass
class Row:
    """One promise of the contract. ``why`` says what is missing."""

    mode: str
    feature: str
    promise: str
    state: str
    why: str = ""


def row_of(item: pytest.Item, report: pytest.TestReport, mode: str) -> Row:
    """The row for a test's report. Its feature is the file's name, its promise the test's name."""
    feature = item.path.stem.removeprefix("test_").replace("_", " ")
    promise = getattr(item, "originalname", item.name).removeprefix("test_").replace("_", " ")
    state, why = state_of_report(report)
    return Row(mode, feature, promise, state, why)


def state_of_report(report: pytest.TestReport) -> tuple[str, str]:
    """The state of a row, and the reason for it in one line."""
    if report.passed:
        return HAS, ""
    text = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        return BROKEN, (crash.message if crash else text).splitlines()[0]
    reason = text.removeprefix("Skipped: ")
    return HAS_NOT if reason.startswith(LACKS) else OPEN, reason.removeprefix(LACKS).removeprefix(CANNOT_TELL)


class Table:
    """The rows of a run, from its reports; the cases of one test are one row."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], Row] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY and isinstance(value, dict):
                self.add(Row(**value))

    def add(self, row: Row) -> None:
        key = (row.mode, row.feature, row.promise)
        known = self._rows.get(key)
        if known is None or ORDER.index(row.state) > ORDER.index(known.state):
            self._rows[key] = row

    @property
    def rows(self) -> Sequence[Row]:
        return list(self._rows.values())

    def lines(self) -> Iterator[str]:
        """A block for each feature."""
        width = max((len(row.promise) for row in self.rows), default=0)
        for mode, feature in dict.fromkeys((row.mode, row.feature) for row in self.rows):
            yield f"{feature} ({mode})"
            for row in self.rows:
                if (row.mode, row.feature) == (mode, feature):
                    why = f"  {row.why}" if row.why else ""
                    yield f"  {row.state:9}  {row.promise:{width}}{why}".rstrip()
        counts = ", ".join(f"{sum(row.state == state for row in self.rows)} {state}" for state in ORDER)
        yield f"in all: {counts}"

    def write(self, file: Path, url: str) -> None:
        rows = [asdict(row) for row in self.rows]
        file.write_text(json.dumps({"url": url, "rows": rows}, indent=1) + "\n")
