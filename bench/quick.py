"""A quick check for every change, in under a minute: python -m bench.quick [--keep], or make bench-quick.

With ``--traces SAMPLER`` (always_off, parentbased_traceidratio, ...) it compares requests with and without
OpenTelemetry instead; the sampler's argument is 0, so that all of them are sampled out.

Prints what one request makes a worker do, and how that compares with what was kept in ``quick.json``.
Nothing in it is a time, so it says the same on every machine; with another Python the counts are others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench import files
from bench.contestant import Contestant
from bench.contestants.floors import SharedMemory
from bench.running import free_port, running
from sm.errors import CommandError

KEPT_FILE = Path(__file__).with_name("quick.json")
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
COUNTING_TIMEOUT_S = 150.0
Counts = Mapping[str, Mapping[str, int]]


def main(keep: bool, sampler: str = "") -> int:
    """Return 0, or 1 after a sentence that says why nothing could be counted."""
    try:
        if sampler:
            print("\n".join(table(*compare_tracing(sampler))))
            return 0
        counts = count()
    except CommandError as error:
        print(error, file=sys.stderr)
        return 1
    kept_counts = json.loads(KEPT_FILE.read_text()) if KEPT_FILE.exists() else {}
    print("\n".join(table(counts, kept_counts.get(VERSION, {}))))
    if keep:
        KEPT_FILE.write_text(json.dumps({**kept_counts, VERSION: counts}, indent=1, sort_keys=True) + "\n")
    return 0


def count() -> Counts:
    """Return the counts of a process set up like a worker."""
    with instant_triton() as environment:
        return _count(environment)


def compare_tracing(sampler: str) -> tuple[Counts, Counts]:
    """Return the counts with traces that are not sampled, and those without traces."""
    traces = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_TRACES_SAMPLER": sampler,
        "OTEL_TRACES_SAMPLER_ARG": "0",
    }
    with instant_triton() as environment:
        plain = {name: value for name, value in environment.items() if not name.startswith("OTEL_")}
        return _count({**plain, **traces}), _count(plain)


def _count(environment: Mapping[str, str]) -> Counts:
    command = (sys.executable, "-m", "bench.counting")
    # The application is called without a socket.
    variables = {**environment, "TRIREME_LISTENER": "0"}
    process = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=False, timeout=COUNTING_TIMEOUT_S
    )
    if process.returncode:
        raise CommandError(f"counting failed:\n{process.stderr[-2000:]}")
    return dict(json.loads(process.stdout.splitlines()[-1]))


@contextmanager
def instant_triton() -> Iterator[dict[str, str]]:
    """Start a Triton whose models are instant; a worker's environment beside it."""
    with files.prepared() as shared, tempfile.TemporaryDirectory(prefix="trireme-bench-") as folder:
        contestant = SharedMemory(free_port(), "instant", Path(folder), shared)
        with running(contestant):
            box = contestant.box
            box.save()
            yield {
                **os.environ,
                **Contestant.environment(contestant),
                "PROMETHEUS_MULTIPROC_DIR": str(box.metrics_folder),
                "TRIREME_RUN_DIR": str(box.run),
                "TRIREME_MODEL_REPOSITORY": str(box.repository),
                "SAGEMAKER_CONTAINER_LOG_LEVEL": "warning",
            }


def table(found: Counts, kept: Counts) -> Iterator[str]:
    """Yield a Markdown table; beside each count is its ratio to the kept one."""
    measures = list(next(iter(found.values())))
    yield f"| Python {VERSION}, one request | {' | '.join(measures)} |"
    yield f"|---|{'---|' * len(measures)}"
    for name, counts in found.items():
        cells = (_cell(counts[measure], kept.get(name, {}).get(measure)) for measure in measures)
        yield f"| {name} | {' | '.join(cells)} |"


def _cell(count: int, before: int | None) -> str:
    return f"{count:,}" if not before else f"{count:,} ({count / before:.3f} ×)"


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(main("--keep" in words, words[words.index("--traces") + 1] if "--traces" in words else ""))
