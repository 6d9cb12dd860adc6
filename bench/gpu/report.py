"""The results as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def markdown(stages: Mapping[str, Any]) -> str:
    return "\n".join([*_head(stages), *_tables(stages)]) + "\n"


def _head(stages: Mapping[str, Any]) -> Iterator[str]:
    machine = stages.get("machine", {}).get("figures") or {}
    yield "# Results of this machine"
    yield ""
    for key in ("when", "gpu", "machine", "python", "cuda", "precision"):
        yield f"- {key}: {machine.get(key)}"
    for package, version in machine.get("packages", {}).items():
        yield f"- {package}: {version}"
    for model, kind in (stages.get("graphs", {}).get("figures") or {}).items():
        yield f"- weights of {model}: {kind}"
    if machine.get("short"):
        yield "- the short form: few requests, so its figures are not a benchmark"
    yield ""


def _tables(stages: Mapping[str, Any]) -> Iterator[str]:
    """Yield the checks, the rates of the single contestants, and those of three models at once."""
    from bench.table import rows_of  # its imports are in the bundle, which is unpacked by now

    checks = [check for stage in stages.values() for check in stage.get("checks", ())]
    outcomes = (
        (check["name"], check["outcome"], " ".join(check["detail"].replace("|", "/").split())[:300])
        for check in checks
    )
    yield from rows_of(("check", "outcome", "detail"), outcomes)
    alone = [row for name in stages if name.startswith("speed-") for row in stages[name].get("figures") or ()]
    mixed = (stages.get("mix") or {}).get("figures") or ()
    for title, names, rows in (
        ("Right answers a second.", ("contestant", "model", "form", "callers"), alone),
        ("Three models at once, 8 callers each.", ("contestant", "model"), mixed),
    ):
        if rows:
            yield f"\n{title}\n"
            cells = (
                (
                    *(str(row[name]) for name in names),
                    f"{row['rate']:.1f}",
                    f"{row['p99'] * 1000:.0f}",
                    str(row["wrong"] + row["lost"]),
                )
                for row in rows
            )
            yield from rows_of((*names, "answers/s", "p99 ms", "wrong or lost"), cells)
