"""The results as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def markdown(stages: Mapping[str, Any]) -> str:
    return "\n".join(_lines(stages)) + "\n"


def _lines(stages: Mapping[str, Any]) -> Iterator[str]:
    machine = stages.get("machine", {}).get("figures") or {}
    yield "# Results of this machine"
    yield ""
    for key in ("when", "gpu", "cpu", "system", "cuda", "precision"):
        yield f"- {key}: {machine.get(key)}"
    for package, version in machine.get("packages", {}).items():
        yield f"- {package}: {version}"
    for model, kind in (stages.get("graphs", {}).get("figures") or {}).items():
        yield f"- weights of {model}: {kind}"
    if machine.get("short"):
        yield "- the short form: few requests, so its figures are not a benchmark"
    yield ""
    yield "| check | outcome | detail |"
    yield "| --- | --- | --- |"
    for stage in stages.values():
        for check in stage.get("checks", ()):
            detail = " ".join(check["detail"].replace("|", "/").split())
            yield f"| {check['name']} | {check['outcome']} | {detail[:300]} |"
    yield ""
    yield from _speed(stages)


def _speed(stages: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        row
        for name, stage in stages.items()
        if name.startswith("speed-")
        for row in stage.get("figures") or ()
    ]
    if rows:
        yield "Right answers a second, and the 99th percentile in ms."
        yield ""
        yield "| contestant | model | form | picture | callers | answers/s | p99 ms | wrong or lost |"
        yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in rows:
        yield (
            f"| {row['contestant']} | {row['model']} | {row['form']} | {row['size']} | {row['callers']} | "
            f"{row['rate']:.1f} | {row['p99'] * 1000:.0f} | {row['wrong'] + row['lost']} |"
        )
    mixed = (stages.get("mix") or {}).get("figures") or ()
    if mixed:
        yield ""
        yield "Three models at once, 8 callers each."
        yield ""
        yield "| contestant | model | answers/s | p99 ms | wrong or lost |"
        yield "| --- | --- | --- | --- | --- |"
    for row in mixed:
        yield (
            f"| {row['contestant']} | {row['model']} | {row['rate']:.1f} | {row['p99'] * 1000:.0f} | "
            f"{row['wrong'] + row['lost']} |"
        )
